// Ranks' courses of training on the CUDA device, over a runtime in plain memory.
#include "tests/gpu/cuda/cuda_course.h"

namespace penstock::engine {

CourseDevice course_device(std::chrono::microseconds) { return cuda_course_device(); }

}  // namespace penstock::engine
