// Ranks' courses of training on the GPUs of this machine, each on one of its own.
#include "gpu/cuda_device.h"
#include "runtime/engine/ranks/rank_place.h"
#include "tests/support/course_device.h"

namespace penstock::engine {

CourseDevice course_device(std::chrono::microseconds) {
  const int index = static_cast<int>(find_rank_place().value().rank_here());
  return {[index](uint64_t, uint64_t arena_bytes) {
            return gpu::open_cuda_device({.index = index, .arena_bytes = arena_bytes});
          },
          nullptr};
}

}  // namespace penstock::engine
