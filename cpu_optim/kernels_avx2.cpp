#if defined(__x86_64__)
#include "cpu_optim/lanes/avx2_lanes.h"

#include "cpu_optim/instructions.h"
#include "cpu_optim/kernel_table.h"

namespace penstock::cpu_optim {

constinit const Kernels kAvx2Kernels = kernel_table<Avx2Lanes>(Isa::avx2, kCompiledFor);

}  // namespace penstock::cpu_optim
#endif
