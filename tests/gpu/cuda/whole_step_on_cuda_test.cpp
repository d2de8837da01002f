// Whole training steps by the engine on the CUDA device, over a runtime in plain memory: the trainer's work is put on
// CUDA streams as host functions, which here reach the device's memory.
#include <gtest/gtest.h>

#include "gpu/cuda_device.h"
#include "tests/gpu/cuda/plain_runtime.h"
#include "tests/support/whole_step_course.h"

namespace penstock::engine {
namespace {

class CudaStream final : public TrainerStream {
 public:
  CudaStream() { CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess); }
  ~CudaStream() override { CHECK(cudaStreamDestroy(stream_) == cudaSuccess); }

  WorkStream work() override {
    return {Stream{stream_}, [this](std::function<void()> work) {
              auto call = [](void* data) {
                const std::unique_ptr<std::function<void()>> held(static_cast<std::function<void()>*>(data));
                (*held)();
              };
              CHECK(cudaLaunchHostFunc(stream_, call, new std::function<void()>(std::move(work))) == cudaSuccess);
            }};
  }

 private:
  cudaStream_t stream_ = nullptr;
};

TEST(WholeStepsOnCuda, LeaveTheBitsOfAPlainLoop) {
  test::set_up({});
  const CourseDevice device{
      [](uint64_t, uint64_t arena_bytes) { return gpu::open_cuda_device({.index = 0, .arena_bytes = arena_bytes}); },
      [](uint64_t) { return std::make_unique<CudaStream>(); }};
  leave_the_bits_of_a_plain_loop(&device);
  EXPECT_EQ(test::left_over(), "");
}

}  // namespace
}  // namespace penstock::engine
