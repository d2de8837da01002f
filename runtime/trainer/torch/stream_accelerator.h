// StreamAccelerator computes on a device that LibTorch has kernels and memory for, on a stream of LibTorch's that is
// this accelerator's alone. It knows the device by LibTorch's general interface only, and so runs in tests without a
// GPU; what CUDA has besides is in cuda_accelerator.cpp.
#pragma once

#include <memory>

#include "runtime/trainer/accelerator.h"

namespace penstock::trainer {

class StreamAccelerator : public Accelerator {
 public:
  ~StreamAccelerator() override;

  c10::Device device() const override;
  Stream stream() const override;
  Status copy(std::span<std::byte> target, std::span<const std::byte> source) override;
  Status finish() override;
  TensorBytes tensor_bytes() const override;
  void restart_tensor_peak() override;
  void give_back_tensors() override;
  uint64_t left_between_tensors(uint64_t bytes) const override;

 protected:
  class OwnStream;  // current on the thread that took it, as long as it exists

  static Result<std::shared_ptr<OwnStream>> take_stream(const c10::Device& device);
  explicit StreamAccelerator(std::shared_ptr<OwnStream> stream) : stream_(std::move(stream)) {}

 private:
  const std::shared_ptr<OwnStream> stream_;
};

}  // namespace penstock::trainer
