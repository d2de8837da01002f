// AreaCutter gives the moves of a plan that fill an area their places in it, so that nothing is allocated while the
// plan runs. For this folder alone.
//
// A move gets the place whose last use ends earliest in the plan, and waits for that end. So an area that holds several
// units lets the next arrive while one is used, and one that holds a single unit makes it wait.
#pragma once

#include <cstdint>
#include <vector>

#include "tiering/plan/plan.h"

namespace penstock {

class AreaCutter {
 public:
  // Of the area, the part [first_byte, first_byte + capacity_bytes).
  AreaCutter(Area area, uint64_t first_byte, uint64_t capacity_bytes);

  // The cuts that follow, of so many bytes together, get places side by side: units that are used together.
  // REQUIRES: that much is not held by moves whose release has not been added, in one piece.
  void reserve(uint64_t bytes);
  // The next cut begins there, counted from the part's first byte. REQUIRES: nobody holds it then.
  void reserve_at(uint64_t offset_bytes, uint64_t bytes);
  // Gives `move`, which will be the plan's next, `bytes` of the area: of what is reserved, else as if just that was.
  void cut(const Plan& plan, Move& move, uint64_t bytes);
  // What `taker` filled may be used by others after the move `release`.
  void give_back(MoveId taker, MoveId release);
  // What is filled first in a step waits for what was there last in the step before. REQUIRES: all was given back.
  void close_cycle(Plan& plan) const;

 private:
  struct Stretch {
    uint64_t begin = 0, end = 0;
    MoveId taker = kNoMove;    // the last one of the step
    MoveId release = kNoMove;  // its; none while it holds the stretch
  };

  bool is_held(const Stretch& stretch) const { return stretch.taker != kNoMove && stretch.release == kNoMove; }
  void split(uint64_t at);
  uint64_t place_for(uint64_t bytes) const;

  const Area area_;
  const uint64_t first_byte_, capacity_bytes_;
  uint64_t reserved_at_ = 0, reserved_bytes_ = 0;
  std::vector<Stretch> stretches_;  // side by side, the whole area
  std::vector<Stretch> first_;      // stretches as each was filled for the first time in the step
};

}  // namespace penstock
