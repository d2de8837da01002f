#include "cpu_optim/lanes/scalar_lanes.h"

#include "cpu_optim/instructions.h"
#include "cpu_optim/kernel_table.h"

namespace penstock::cpu_optim {

constinit const Kernels kScalarKernels = kernel_table<ScalarLanes>(Isa::scalar, kCompiledFor);

}  // namespace penstock::cpu_optim
