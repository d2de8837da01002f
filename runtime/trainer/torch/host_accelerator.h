// HostAccelerator: tensors lie in host memory, and the calling thread computes them, in place or over the memory of the
// host device. Its stream is the null stream: what is put on it has ended when the call returns.
#pragma once

#include "runtime/trainer/accelerator.h"

namespace penstock::trainer {

class HostAccelerator final : public Accelerator {
 public:
  c10::Device device() const override;
  Stream stream() const override { return {}; }
  Status copy(std::span<std::byte> target, std::span<const std::byte> source) override;
  Status finish() override { return Status(); }
  TensorBytes tensor_bytes() const override;
  void restart_tensor_peak() override;
  void limit_tensors(uint64_t bytes) override;
  void give_back_tensors() override;
  uint64_t left_between_tensors(uint64_t) const override { return 16 * kMiB; }
  uint64_t free_bytes() const override { return 0; }
  std::string description() const override;
};

}  // namespace penstock::trainer
