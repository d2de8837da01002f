// The one file of the trainer that knows CUDA. It calls no function of LibTorch's CUDA libraries by name, but virtual
// ones alone, so that it compiles and links with a LibTorch that has none.
#include "runtime/trainer/torch/cuda_accelerator.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/cuda.h>
#include <torch/version.h>
#ifdef PENSTOCK_HAS_CUDA
#if !__has_include(<c10/cuda/impl/cuda_cmake_macros.h>)
#define C10_CUDA_NO_CMAKE_CONFIGURE_FILE
#endif
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <algorithm>
#include <cstdlib>

#include "gpu/cuda_device.h"
#include "runtime/trainer/torch/refusals.h"
#include "runtime/trainer/torch/stream_accelerator.h"
#include "tiering/check.h"

namespace penstock::trainer {
namespace {

class CudaAccelerator final : public StreamAccelerator {
 public:
  static Result<std::shared_ptr<Accelerator>> open(int index) {
    PENSTOCK_TRY_ASSIGN(stream, take_stream(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index))));
    return std::shared_ptr<Accelerator>(new CudaAccelerator(std::move(stream)));
  }

  // LibTorch counts the runs that it has taken, used or not.
  void limit_tensors(uint64_t bytes) override {
#ifdef PENSTOCK_HAS_CUDA
    using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;
    auto* allocator = static_cast<Allocator*>(c10::getDeviceAllocator(c10::kCUDA));
    const double total = static_cast<double>(allocator->getMemoryInfo(device().index()).second);
    allocator->setMemoryFraction(bytes == kNoLimit ? 1 : std::min(1.0, static_cast<double>(bytes) / total),
                                 device().index());
#else
    (void)bytes;
    CHECK(false, "a build without CUDA has opened a CUDA device");
#endif
  }

  uint64_t free_bytes() const override {
    return c10::getDeviceAllocator(c10::kCUDA)->getMemoryInfo(device().index()).first;
  }
  std::string description() const override { return text(device().str(), ", torch " TORCH_VERSION); }

 private:
  explicit CudaAccelerator(std::shared_ptr<OwnStream> stream) : StreamAccelerator(std::move(stream)) {}
};

void choose_kernels(const CudaOptions& options) {
  at::Context& torch = at::globalContext();
  if (options.deterministic) {
    // cuBLAS gives the same bits only with workspaces of its own for each stream, and reads this at its first call.
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    torch.setDeterministicAlgorithms(true, /*warn_only=*/false);
    torch.setDeterministicFillUninitializedMemory(false);  // nothing is read before it is written
    torch.setDeterministicCuDNN(true);
    torch.setSDPUseCuDNN(false);  // it may choose another kernel where no gradient will be asked for
  }
  torch.setBenchmarkCuDNN(false);
  torch.setAllowTF32CuBLAS(options.tf32);
}

}  // namespace

Status cuda_usable(int index) {
  if (!at::globalContext().hasCUDART()) {
    return Status(Code::kEnvironment, "LibTorch: torch " TORCH_VERSION " was built without CUDA",
                  "install a torch with CUDA (pip install torch) and build again with it, or \"device\": \"cpu\"");
  }
  PENSTOCK_TRY(gpu::usable(gpu::find_cuda(), index));
  const auto devices = static_cast<int>(torch::cuda::device_count());
  if (index < devices) return Status();
  return Status(
      Code::kEnvironment,
      text("LibTorch: torch " TORCH_VERSION " finds ", devices, " CUDA devices, number ", index, " is asked for"),
      "a torch for this driver's CUDA, or \"device\": \"cpu\"");
}

Result<std::shared_ptr<Accelerator>> open_cuda_accelerator(const CudaOptions& options) {
  PENSTOCK_TRY(cuda_usable(options.index));
  return without_exceptions(nullptr, [&] {
    choose_kernels(options);
    at::globalContext().lazyInitDevice(c10::kCUDA);
    return CudaAccelerator::open(options.index);
  });
}

}  // namespace penstock::trainer
