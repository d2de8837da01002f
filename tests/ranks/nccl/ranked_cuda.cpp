// Ranks' courses of training on the CUDA device, over a runtime in plain memory. BY_COPIES=1: with the trainer that
// courses on GPUs have.
#include <cstdlib>

#include "tests/gpu/cuda/cuda_course.h"

namespace penstock::engine {

CourseDevice course_device(std::chrono::microseconds least) {
  CourseDevice device = cuda_course_device(least);
  if (std::getenv("BY_COPIES") != nullptr) device.make_stream = nullptr;
  return device;
}

}  // namespace penstock::engine
