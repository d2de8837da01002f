// Whether the system lets this process have more threads.
#pragma once

#include <cstdint>

#include "tiering/status.h"

namespace penstock::cpu_optim {

// oneTBB ends the program when it cannot start a thread. Starting as many here first turns that into a Status.
Status check_threads_can_start(uint32_t threads);

}  // namespace penstock::cpu_optim
