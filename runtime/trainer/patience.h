// Early stopping: when to end a run whose evaluations have stopped getting better.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

namespace penstock::trainer {

struct PatienceState {
  std::optional<double> best = {};  // loss so far, of what is held out
  uint64_t evaluations_since = 0;   // it was found

  bool operator==(const PatienceState&) const = default;
};

struct PatienceRules {
  uint64_t evaluations = 0;  // without a better one, after which a run ends; 0: it never does
  double least_gain = 0;     // a loss that is lower by no more than this is no better

  bool operator==(const PatienceRules&) const = default;
};

// After an evaluation: whether the run is to end. A loss that is not finite is never better.
inline bool is_over(const PatienceRules& rules, double loss, PatienceState& state) {
  if (rules.evaluations == 0) return false;
  const bool is_better = std::isfinite(loss) && (!state.best || loss < *state.best - rules.least_gain);
  if (is_better)
    state = {.best = loss, .evaluations_since = 0};
  else
    ++state.evaluations_since;
  return state.evaluations_since >= rules.evaluations;
}

}  // namespace penstock::trainer
