// Launches kernels on a CUDA stream.
#pragma once

#include <cuda_runtime_api.h>

#include "tiering/device_kernels.h"

namespace penstock::gpu {

cudaError_t launch_on_cuda(const Kernel& kernel, cudaStream_t stream);

}  // namespace penstock::gpu
