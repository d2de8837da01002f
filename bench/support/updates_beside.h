// Updates beside the drives' traffic, one for each tile written as in a step, of tiles in memory of their own: where
// the drives' bytes pass through the processors, both take from one another.
#pragma once

#include <atomic>
#include <vector>

#include "tools/update/update_load.h"

namespace penstock::bench {

class UpdatesBeside {
 public:
  UpdatesBeside(const StateForm& form, uint64_t tile_elements, uint64_t memory_bytes)
      : load_(form, tile_elements, memory_bytes), under_way_(load_.tiles()) {}

  // The updates are behind by all the tiles that they have.
  bool behind() const { return under_way_[begun_ % load_.tiles()]; }
  // REQUIRES: not behind().
  void begin_one() {
    const uint64_t tile = begun_++ % load_.tiles();
    under_way_[tile] = true;
    arena_.enqueue(load_.job(tile), [this, tile](const cpu_optim::TileReport&) { under_way_[tile] = false; });
  }

 private:
  tools::UpdateLoad load_;
  std::vector<std::atomic<bool>> under_way_;  // by tile
  uint64_t begun_ = 0;
  cpu_optim::UpdateArena arena_;  // ends first: it waits for what is under way
};

}  // namespace penstock::bench
