// Stands in for the CUDA device in builds without a toolkit.
#include "gpu/cuda_device.h"

namespace penstock::gpu {

CudaFindings find_cuda() { return {}; }

Result<std::unique_ptr<Device>> open_cuda_device(const CudaDeviceOptions& options) {
  return usable(find_cuda(), options.index);
}

Result<std::string> cuda_identity(int index) { return usable(find_cuda(), index); }

Result<std::unique_ptr<Backend>> open_cuda_backend(int index) { return usable(find_cuda(), index); }

}  // namespace penstock::gpu
