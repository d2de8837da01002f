#if defined(__aarch64__)
#include "cpu_optim/lanes/neon_lanes.h"

#include "cpu_optim/instructions.h"
#include "cpu_optim/kernel_table.h"

namespace penstock::cpu_optim {

constinit const Kernels kNeonKernels = kernel_table<NeonLanes>(Isa::neon, kCompiledFor);

}  // namespace penstock::cpu_optim
#endif
