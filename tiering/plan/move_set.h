// MoveSet: some of a plan's moves, in the plan's order. Its memory is taken when it is made, so that nothing is
// allocated while a plan runs.
//
// A bit for each move, and above every 64 words a word that says which of them are not empty: whatever is asked takes a
// step for each level, of which a plan of 16 million moves has four.
#pragma once

#include <cstdint>
#include <vector>

#include "tiering/plan/plan.h"

namespace penstock {

class MoveSet {
 public:
  MoveSet() = default;
  // Of the moves [0, count).
  explicit MoveSet(size_t count);

  bool is_made() const { return !levels_.empty(); }  // of some plan
  bool empty() const { return levels_.empty() || levels_.back().front() == 0; }
  // False for kNoMove.
  bool contains(MoveId id) const {
    return !levels_.empty() && id / 64 < levels_.front().size() && (levels_.front()[id / 64] >> id % 64 & 1) != 0;
  }
  // kNoMove where there is none.
  MoveId first() const { return empty() ? kNoMove : first_below(levels_.size() - 1, 0); }
  MoveId after(MoveId id) const;

  void insert(MoveId id);
  void erase(MoveId id);

 private:
  // The first move of a word that is not empty.
  MoveId first_below(size_t level, uint64_t word) const;

  std::vector<std::vector<uint64_t>> levels_;  // the last is one word
};

}  // namespace penstock
