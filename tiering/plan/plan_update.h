// UpdateMoves adds the update of a step to its plan: each tile's read, update and write, the verdict, what is done once
// more after it strikes, and the commit. For this folder alone.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tiering/plan/plan.h"

namespace penstock {

class UpdateMoves {
 public:
  // `order`: the tiles that will be added. `device_gbps`: of updates on a device. REQUIRES: `plan` has its placements;
  // it outlives this.
  UpdateMoves(Plan& plan, std::vector<TileId> order, double device_gbps)
      : plan_(plan), order_(std::move(order)), device_gbps_(device_gbps) {}

  // The moves of one tile. `weight_here`: backward's copy of the weight, if there is one.
  void add_tile(TileId tile, std::vector<MoveId> gradient_after, MoveId weight_here);
  // What follows when every tile was added.
  void finish();

 private:
  // A move of one tile over a lane; it takes a piece of a pool where one is named.
  MoveId add_move(MoveKind kind, Lane lane, TileId tile, uint64_t bytes, std::vector<MoveId> after,
                  Pool takes = Pool::none);
  void redo_tile(TileId tile);
  // Of a tile that rests on the device: its update, with clipping after the verdict; and the write of what it is then,
  // behind all others in the plan, so that it holds back no window for what is read ahead of its gradient.
  void update_on_device(TileId tile);
  void write_from_device(TileId tile);
  void tie_to_step_before(TileId tile);

  Plan& plan_;
  const std::vector<TileId> order_;
  const double device_gbps_;
};

}  // namespace penstock
