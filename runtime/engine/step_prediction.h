// How long a plan's step takes by the rates it was made for, by how it ends.
#pragma once

#include <map>
#include <utility>

#include "tiering/plan/plan_search.h"

namespace penstock::engine {

class StepPrediction {
 public:
  // Of another plan, or at other rates. `step_s`: of one that is confirmed; 0 where it is unknown.
  void reset(double step_s) {
    step_s_ = step_s;
    taken_back_s_.clear();
  }
  double step_s() const { return step_s_; }

  // The first of a kind is played through, by `plan()`. REQUIRES: that plan and the rates are those of reset().
  template <typename PlanOf>
  double of(Verdict verdict, bool speculated, const MachineProfile& machine, PlanOf plan) {
    if (verdict == Verdict::confirm || step_s_ <= 0) return step_s_;
    const auto [known, is_new] = taken_back_s_.try_emplace({verdict, speculated});
    if (is_new) known->second = predicted_taken_back(plan(), machine, verdict, speculated).step_s;
    return known->second;
  }

 private:
  double step_s_ = 0;
  std::map<std::pair<Verdict, bool>, double> taken_back_s_;
};

}  // namespace penstock::engine
