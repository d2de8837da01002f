// DeviceUnits is a device's memory for the weights that passes have brought there. For this folder alone.
//
// Where ranks keep what they have gathered (Workload::keeps_weights), each unit has a place of its own, from its first
// use to the end of the step. Elsewhere the units of a use lie side by side, and go when the use has ended.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tiering/plan/area_cutter.h"
#include "tiering/plan/plan.h"
#include "tiering/unit.h"

namespace penstock {

class DeviceUnits {
 public:
  // `on_device`: whether passes compute there at all.
  DeviceUnits(const Workload& workload, const TileMap& tiles, bool on_device, uint64_t capacity_bytes);

  // What brought a unit's weights, and the move after which they may be used.
  struct Brought {
    MoveId taker = kNoMove, ready = kNoMove;
  };
  // What is there since an earlier use of the step.
  const std::optional<Brought>& kept(uint32_t unit) const { return kept_[unit]; }

  // Room for what a use brings of its units, together.
  void reserve(uint64_t bytes);
  // Gives `move`, which will be the plan's next, the unit's place.
  void cut(const Plan& plan, Move& move, uint32_t unit, uint64_t bytes);
  // Of a unit whose weights were not there.
  void brought(uint32_t unit, const Brought& weights);
  // What `taker` brought has been used, by the move `after` for the last time in this use.
  void end_use(Plan& plan, MoveId taker, MoveId after);
  void end_step(Plan& plan, MoveId after);

  AreaCutter& area() { return area_; }

 private:
  const bool keeps_;
  std::vector<uint64_t> kept_at_;  // by unit
  std::vector<std::optional<Brought>> kept_;
  AreaCutter area_;
};

}  // namespace penstock
