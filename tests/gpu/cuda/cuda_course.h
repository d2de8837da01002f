// The CUDA device over a runtime in plain memory, for courses of training: the trainer's work is put on CUDA streams as
// host functions, which here reach the device's memory.
#pragma once

#include <chrono>
#include <thread>

#include "gpu/cuda_device.h"
#include "tests/gpu/cuda/plain_runtime.h"
#include "tests/support/course_device.h"

namespace penstock::engine {

class CudaStream final : public TrainerStream {
 public:
  explicit CudaStream(std::chrono::microseconds least = {}) : least_(least) {
    CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess);
  }
  ~CudaStream() override { CHECK(cudaStreamDestroy(stream_) == cudaSuccess); }

  WorkStream work() override {
    return {Stream{stream_}, [this](std::function<void()> work) {
              auto call = [](void* data) {
                const std::unique_ptr<std::function<void()>> held(static_cast<std::function<void()>*>(data));
                (*held)();
              };
              auto takes_its_time = [work = std::move(work), least = least_] {
                std::this_thread::sleep_for(least);
                work();
              };
              CHECK(cudaLaunchHostFunc(stream_, call, new std::function<void()>(takes_its_time)) == cudaSuccess);
            }};
  }
  void synchronize() const { CHECK(cudaStreamSynchronize(stream_) == cudaSuccess); }

 private:
  const std::chrono::microseconds least_;
  cudaStream_t stream_ = nullptr;
};

// Each piece of work takes at least so long.
inline CourseDevice cuda_course_device(std::chrono::microseconds least = {}) {
  return {
      [](uint64_t, uint64_t arena_bytes) { return gpu::open_cuda_device({.index = 0, .arena_bytes = arena_bytes}); },
      [least](uint64_t) { return std::make_unique<CudaStream>(least); }};
}

}  // namespace penstock::engine
