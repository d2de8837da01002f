// Runs the kernels on the host: the same functions that a GPU runs, in loops.
#pragma once

#include "tiering/device_kernels.h"

namespace penstock::gpu {

// The kernel's addresses are host addresses.
void run_on_host(const Kernel& kernel);

}  // namespace penstock::gpu
