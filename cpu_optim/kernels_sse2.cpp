#if defined(__x86_64__)
#include "cpu_optim/lanes/sse2_lanes.h"

#include "cpu_optim/instructions.h"
#include "cpu_optim/kernel_table.h"

namespace penstock::cpu_optim {

constinit const Kernels kSse2Kernels = kernel_table<Sse2Lanes>(Isa::sse2, kCompiledFor);

}  // namespace penstock::cpu_optim
#endif
