// What the builders of a plan add moves with. For this folder alone.
#pragma once

#include <utility>
#include <vector>

#include "tiering/plan/plan.h"

namespace penstock {

// A dependency may be left out by naming kNoMove.
inline MoveId add(Plan& plan, Move move) {
  std::erase(move.after, kNoMove);
  std::erase(move.after_previous, kNoMove);
  plan.moves.push_back(std::move(move));
  return static_cast<MoveId>(plan.moves.size() - 1);
}

// Gives back what `taker` took, once it and `after` have ended.
inline MoveId release(Plan& plan, MoveId taker, std::vector<MoveId> after) {
  after.push_back(taker);
  const Move& took = plan.moves[taker];
  return add(plan, {.kind = MoveKind::release,
                    .unit = took.unit,
                    .use = took.use,
                    .tile = took.tile,
                    .micro_batch = took.micro_batch,
                    .gives_back = taker,
                    .after = std::move(after)});
}

}  // namespace penstock
