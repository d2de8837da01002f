#include "gpu/host_kernels.h"

#include <array>
#include <cstring>
#include <memory>

#include "gpu/kernels/resolve.h"

namespace penstock::gpu {
namespace {

struct RunInLoops {
  void operator()(const kernel::Fill& fill) const { std::memset(fill.target, fill.value, fill.bytes); }

  // Phase by phase over all threads of a block: what __syncthreads() promises a GPU's threads.
  template <typename K>
  void operator()(const K& kernel) const {
    auto shared = std::make_unique<typename K::Shared>();
    auto locals = std::make_unique<std::array<typename K::Local, kThreads>>();
    for (uint64_t block = 0; block < kernel.blocks(); ++block) {
      for (uint32_t phase = 0; phase < K::kPhases; ++phase) {
        for (uint32_t thread = 0; thread < kThreads; ++thread) {
          kernel.run(phase, block, thread, *shared, (*locals)[thread]);
        }
      }
    }
  }
};

}  // namespace

void run_on_host(const Kernel& kernel) { run_kernel(kernel, RunInLoops{}); }

}  // namespace penstock::gpu
