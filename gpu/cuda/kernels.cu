// The kernels on a GPU: the functions of gpu/kernels, one thread each.
#include "gpu/cuda/kernels.h"

#include "gpu/kernels/resolve.h"

namespace penstock::gpu {
namespace {

template <typename K>
__global__ void __launch_bounds__(kThreads) run_on_grid(const K kernel) {
  __shared__ typename K::Shared shared;
  typename K::Local local;
#pragma unroll
  for (uint32_t phase = 0; phase < K::kPhases; ++phase) {
    if (phase > 0) __syncthreads();
    kernel.run(phase, blockIdx.x, threadIdx.x, shared, local);
  }
}

struct Launch {
  cudaStream_t stream;

  cudaError_t operator()(const kernel::Fill& fill) const {
    return cudaMemsetAsync(fill.target, fill.value, fill.bytes, stream);
  }

  // A grid holds 2^31 - 1 blocks: 2 * 10^12 elements, more than any memory.
  template <typename K>
  cudaError_t operator()(const K& kernel) const {
    uint64_t blocks = kernel.blocks();
    if (blocks == 0) return cudaSuccess;
    // Its own answer: the thread's last error may be another's.
    void* arguments[] = {const_cast<K*>(&kernel)};
    return cudaLaunchKernel(run_on_grid<K>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), arguments, 0, stream);
  }
};

}  // namespace

cudaError_t launch_on_cuda(const Kernel& kernel, cudaStream_t stream) { return run_kernel(kernel, Launch{stream}); }

}  // namespace penstock::gpu
