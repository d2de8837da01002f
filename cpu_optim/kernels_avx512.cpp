#if defined(__x86_64__)
#include "cpu_optim/lanes/avx512_lanes.h"

#include "cpu_optim/instructions.h"
#include "cpu_optim/kernel_table.h"

namespace penstock::cpu_optim {

constinit const Kernels kAvx512Kernels = kernel_table<Avx512Lanes>(Isa::avx512, kCompiledFor);

}  // namespace penstock::cpu_optim
#endif
