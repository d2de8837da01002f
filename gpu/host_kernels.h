// The kernels on the host: the functions that a GPU runs, in loops.
#pragma once

#include "tiering/device_kernels.h"

namespace penstock::gpu {

// Addresses are ordinary ones.
void run_on_host(const Kernel& kernel);

}  // namespace penstock::gpu
