// StoredModel is the model as the stores of several ranks have it: which of them has a run of a unit's elements, and
// what they count together.
#pragma once

#include <optional>
#include <vector>

#include "runtime/engine/ranks/rank_place.h"
#include "runtime/engine/ranks/reshard.h"
#include "runtime/engine/ranks/shard_map.h"
#include "runtime/engine/root_state.h"

namespace penstock::engine {

// Of the store's largest tile, in whole blocks.
uint64_t tile_elements_of(const aio::TileStore& store);

// A run of a plane's elements in one tile of one rank: whole blocks of its checksums.
struct StoredRun {
  uint32_t rank = 0;
  TileId tile = 0;
  uint32_t plane = 0;
  ElementRun run;  // of the tile
};

// Refuses stores that are at different steps.
Status another_step(uint32_t rank, uint64_t step, uint64_t step_of_rank_0);
// Refuses stores of one run that were at that step at two times, with other steps before.
Status another_course(uint32_t rank, uint64_t step);

class StoredModel {
 public:
  // `set` outlives it.
  StoredModel(const StoreSet& set, const Workload& model);

  // Refuses stores of another model, of several runs, or at different steps.
  Status check() const;
  // The counts of all the model's units. Ranks that have parts of one must agree.
  Result<EngineState> counts(const Workload& model) const;
  // Where the unit's elements from `first` on lie: as many of `count` as are in one tile. REQUIRES: it begins a block.
  StoredRun find(uint32_t unit, uint32_t plane, uint64_t first, uint64_t count) const;

  aio::TileStore& store(uint32_t rank) const { return *set_.stores[rank]; }

 private:
  const StoreSet& set_;
  const ShardMap map_;
  std::vector<RankWorkload> cuts_;  // by rank
  std::vector<TileMap> tiles_;
};

}  // namespace penstock::engine
