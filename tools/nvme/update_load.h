// Tiles in memory that are updated over and over without a drive: what updates alone take of processors and memory.
#pragma once

#include <vector>

#include "cpu_optim/update_workers.h"
#include "tiering/buffer.h"
#include "tiering/state_layout.h"

namespace penstock::tools {

class UpdateLoad {
 public:
  // As many tiles as `memory_bytes` hold, one at least.
  UpdateLoad(const StateForm& form, uint64_t tile_elements, uint64_t memory_bytes);

  uint64_t tiles() const { return checksums_.size(); }
  // An update of one tile. REQUIRES: it is not under way.
  cpu_optim::TileJob job(uint64_t tile);
  // What an update of one reads and writes, counted as the planner counts it.
  uint64_t traffic_bytes() const { return 2 * (layout_.size_bytes + weight_bytes_) + gradient_bytes_; }

 private:
  const uint64_t elements_;
  const TileLayout layout_;
  const uint64_t weight_bytes_, gradient_bytes_;
  const cpu_optim::TileUpdater updater_;
  std::vector<std::vector<uint64_t>> checksums_;  // by tile
  std::vector<uint64_t> expected_;
  Buffer states_, weights_, gradients_;
  NumbersRun whole_;
};

}  // namespace penstock::tools
