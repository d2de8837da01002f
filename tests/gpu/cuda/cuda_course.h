// The CUDA device over a runtime in plain memory, for courses of training: the trainer's work is put on CUDA streams as
// host functions, which here reach the device's memory.
#pragma once

#include "gpu/cuda_device.h"
#include "tests/gpu/cuda/plain_runtime.h"
#include "tests/support/course_device.h"

namespace penstock::engine {

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
  void synchronize() const { CHECK(cudaStreamSynchronize(stream_) == cudaSuccess); }

 private:
  cudaStream_t stream_ = nullptr;
};

inline CourseDevice cuda_course_device() {
  return {
      [](uint64_t, uint64_t arena_bytes) { return gpu::open_cuda_device({.index = 0, .arena_bytes = arena_bytes}); },
      [](uint64_t) { return std::make_unique<CudaStream>(); }};
}

}  // namespace penstock::engine
