// RankDeviceSums adds a rank's gradients up on the device that computes them, of whole units: by kernels on the
// trainer's stream, each use's micro-batches, then the uses, rounded once for the way to the other ranks. It has the
// bits of GradientIntake's sums in host memory.
//
// Used by one thread at a time.
#pragma once

#include "runtime/engine/gradient_intake.h"
#include "runtime/engine/ranks/rank_device.h"

namespace penstock::engine {

class RankDeviceSums final : public GradientIntake::Adder {
 public:
  // `device` has the memory that `layout` is of. All that is named outlives it.
  RankDeviceSums(const Workload& workload, SumLayout layout, RankDevice& device)
      : workload_(workload), layout_(std::move(layout)), device_(device) {}

  // The gradients that follow are of this use, which is computed on `stream`.
  void begin_pass(uint32_t use, Stream stream);
  // Those that follow lie in memory that is ordered by this stream.
  void take_from(Stream stream) { source_ = stream; }

  // GradientIntake::Adder. A refusal of the device is kept in status().
  bool starts_sum(uint32_t micro_batch) const override { return micro_batch == 0; }
  void zero(uint32_t unit) override;
  void add(const GradientIntake::Part& part, const GradientIntake::Values& values, uint64_t count) override;

  // The unit's gradient, which is complete, rounded into `target`; zeros where it `has_values` of nothing.
  void give(uint32_t unit, bool has_values, std::span<std::byte> target);
  // When all that was given so far is there.
  Result<Event> given();
  const Status& status() const { return status_; }

 private:
  void launch(const Kernel& kernel, Stream stream);
  // What is put on `later` from now on follows what is on `earlier`.
  void order(Stream earlier, Stream later);
  std::span<std::byte> sum_of(uint32_t unit, size_t number_of_use) const;
  std::span<std::byte> sum_here(uint32_t unit) const;

  const Workload& workload_;
  const SumLayout layout_;
  RankDevice& device_;
  bool has_begun_ = false;
  uint32_t use_ = 0;
  Stream stream_, source_;
  Status status_;
};

}  // namespace penstock::engine
