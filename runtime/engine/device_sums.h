// DeviceSums adds a trainer's gradients up on the device that computes them: by kernels on the trainer's stream, in the
// places that the plan gave.
//
// Used by one thread at a time.
#pragma once

#include "runtime/engine/device_memory.h"
#include "runtime/engine/gradient_intake.h"

namespace penstock::engine {

class DeviceSums final : public GradientIntake::Adder {
 public:
  // All that is named outlives it.
  DeviceSums(const Workload& workload, const Plan& plan, DeviceMemory& memory)
      : workload_(workload), plan_(plan), memory_(memory) {}

  // The gradients that follow are of this pass, which is computed on `stream`.
  void begin_pass(const Compute& compute, Stream stream);
  // Those that follow lie in memory that is ordered by this stream.
  void take_from(Stream stream);

  // GradientIntake::Adder. A refusal of the device is kept in status().
  bool starts_sum(uint32_t micro_batch) const override;
  void zero(uint32_t unit) override;
  void add(const GradientIntake::Part& part, const GradientIntake::Values& values, uint64_t count) override;

  // The pass was the last whose gradients are added up there: what is complete is rounded, and of what stays there the
  // squares are summed.
  void round();
  const Status& status() const { return status_; }

 private:
  void launch(const Kernel& kernel, Stream stream);
  // What is put on `later` from now on follows what is on `earlier`.
  void order(Stream earlier, Stream later);
  const Compute::Sum& sum_of(uint32_t unit) const;
  std::span<std::byte> place(uint64_t offset_bytes, uint64_t bytes) const {
    return memory_.at(Area::device_gradients, offset_bytes, bytes);
  }

  const Workload& workload_;
  const Plan& plan_;
  DeviceMemory& memory_;
  const Compute* compute_ = nullptr;
  Stream stream_, source_;
  Status status_;
};

}  // namespace penstock::engine
