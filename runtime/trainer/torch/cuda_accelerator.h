// CUDA's side of an accelerator. What computes there is LibTorch's; the engine's own device is in gpu/.
#pragma once

#include <memory>

#include "runtime/trainer/accelerator.h"

namespace penstock::trainer {

struct CudaOptions {
  int index = 0;
  // Kernels that give the same bits each time; one that LibTorch has no such kernel for is refused.
  bool deterministic = true;
  bool tf32 = false;  // in products of fp32
};

// Whether a step can be computed on device `index`, by the engine and by LibTorch: ok, or what was found and what can
// be done.
Status cuda_usable(int index);

// Refused where it is not usable. Sets what LibTorch asks the process for: kernels, and their workspace.
Result<std::shared_ptr<Accelerator>> open_cuda_accelerator(const CudaOptions& options);

}  // namespace penstock::trainer
