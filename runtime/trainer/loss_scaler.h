// LossScaler: the factor of the loss that keeps fp16 gradients from vanishing, by DeepSpeed's rules.
//
// A step that overflowed uses up one unit of hysteresis, and halves the scale once only one is left. `window` steps
// that did not, and one more, double it and give the hysteresis back.
#pragma once

#include <cstdint>

#include "runtime/trainer/config/train_config.h"

namespace penstock::trainer {

struct LossScaleState {
  double scale = 1;
  uint64_t hysteresis = 1;     // overflows that are left before the scale is halved, and the one that halves it
  uint64_t last_overflow = 0;  // the step; 0: none yet

  bool operator==(const LossScaleState&) const = default;
};

class LossScaler {
 public:
  // Without fp16 the scale is 1 and stays so.
  LossScaler(const LossScaling& rules, Dtype precision);

  double scale() const { return state_.scale; }
  const LossScaleState& state() const { return state_; }
  void restore(const LossScaleState& state) { state_ = state; }

  // Of every step in turn, whether its gradients were not finite. Refuses an overflow where the scale cannot fall any
  // further.
  Status learn(uint64_t step, bool overflowed);

 private:
  const LossScaling rules_;
  const bool dynamic_;
  LossScaleState state_;
};

}  // namespace penstock::trainer
