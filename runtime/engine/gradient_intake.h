// GradientIntake turns what a trainer hands over into finished gradients: added up in fp32 by micro-batch index,
// rounded once, and measured block by block.
//
// A unit's gradient is complete after `micro_batches * uses` contributions. The bits do not depend on tiles: everything
// is element by element, and blocks of the norm are counted from the unit's first element.
// Used by the trainer's thread alone.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cpu_optim/gradient.h"
#include "tiering/unit.h"

namespace penstock::engine {

class GradientIntake {
 public:
  // `memory`: for the fp32 sums of as many units at once as it holds of the largest.
  GradientIntake(const Workload& workload, std::span<std::byte> memory);

  void begin(uint32_t micro_batches);

  // Takes the next contribution to `unit`. Refuses one too many, one out of order, another length. What makes the
  // gradient complete is not added here but handed on: finish() joins it piece by piece.
  enum class Taken { added, completes };
  Result<Taken> take(uint32_t unit, uint32_t micro_batch, Dtype dtype, std::span<const std::byte> values);

  // The run [first, first + count) of the complete gradient into `target`, in the workload's gradient dtype, and its
  // sums of squares by block. `values` is the last contribution, whole.
  void finish(uint32_t unit, Dtype dtype, std::span<const std::byte> values, uint64_t first, uint64_t count,
              std::byte* target, std::span<double> squares);
  // The unit's sums may be used by another.
  void finished(uint32_t unit);

  // What the unit has got in this step, so that it cannot be without a gradient; empty if nothing.
  std::string why_not_absent(uint32_t unit) const;
  // Nothing will be handed over for the unit in this step.
  void give_up(uint32_t unit) { units_[unit].done = true; }

  bool complete(uint32_t unit) const { return units_[unit].done; }

 private:
  struct UnitState {
    uint32_t contributions = 0;
    uint32_t last_micro_batch = 0;
    float* sum = nullptr;
    bool done = false;
  };

  const Workload& workload_;
  const cpu_optim::GradientKernels kernels_;
  std::span<std::byte> memory_;
  uint64_t piece_bytes_ = 0;
  std::vector<float*> free_;
  std::vector<UnitState> units_;
  uint32_t micro_batches_ = 1;
};

}  // namespace penstock::engine
