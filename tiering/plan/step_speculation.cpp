#include "tiering/plan/step_speculation.h"

#include <utility>

namespace penstock {

StepSpeculation::StepSpeculation(const Plan& plan, bool speculate, bool may_be_discarded)
    : plan_(plan),
      may_be_discarded_(may_be_discarded),
      speculating_(plan.clipping && speculate),
      tiles_(plan.tiles.size()) {}

bool StepSpeculation::postpones(TileId tile) const {
  const TileFate& fate = tiles_[tile];
  return plan_.clipping && !verdict_ && !speculating_ && plan_.of_tile[tile].weight_copy != kNoMove &&
         !fate.speculated && !fate.absent && !fate.postponed;
}

bool StepSpeculation::stop() {
  if (!std::exchange(speculating_, false) || verdict_) return false;
  stopped_ = true;
  return true;
}

void StepSpeculation::give(Verdict verdict) {
  speculating_ = false;
  verdict_ = verdict;
}

bool StepSpeculation::is_redone(TileId tile) const {
  const TileFate& fate = tiles_[tile];
  if (fate.absent || !verdict_ || *verdict_ == Verdict::skip) return false;
  return fate.postponed || (fate.speculated && *verdict_ == Verdict::strike);
}

bool StepSpeculation::is_restored(TileId tile) const {
  return verdict_ == Verdict::skip && tiles_[tile].speculated && plan_.placements[tile].weight_in_host();
}

}  // namespace penstock
