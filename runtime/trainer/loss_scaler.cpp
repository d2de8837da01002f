#include "runtime/trainer/loss_scaler.h"

#include <algorithm>
#include <cmath>

namespace penstock::trainer {

LossScaler::LossScaler(const LossScaling& rules, Dtype precision)
    : rules_(rules), dynamic_(precision == Dtype::fp16 && rules.scale == 0) {
  if (precision != Dtype::fp16) return;
  state_.scale = dynamic_ ? std::ldexp(1.0, static_cast<int>(rules.initial_scale_power)) : rules.scale;
  state_.hysteresis = rules.hysteresis;
}

Status LossScaler::learn(uint64_t step, bool overflowed) {
  if (!dynamic_) return Status();
  if (overflowed) {
    state_.last_overflow = step;
    if (state_.hysteresis > 1) {
      --state_.hysteresis;
      return Status();
    }
    if (state_.scale <= rules_.least) {
      return Status(Code::kComparison,
                    text("train: step ", step, ": gradients overflow although the loss scale is ", state_.scale,
                         ", the least that fp16.min_loss_scale allows"),
                    "a lower learning rate, or bf16, which needs no scale");
    }
    state_.scale = std::max(state_.scale / 2, rules_.least);
    return Status();
  }
  if (rules_.consecutive_hysteresis) state_.hysteresis = rules_.hysteresis;
  const uint64_t good = step - state_.last_overflow - 1;  // before this one
  if (good > 0 && good % rules_.window == 0) {
    state_.hysteresis = rules_.hysteresis;
    state_.scale *= 2;
  }
  return Status();
}

}  // namespace penstock::trainer
