// A set is the stores of all ranks of a world. make_set() makes a new one in one process, rank by rank, of what a
// SetContent has for it. Beside tables, which grow with the number of tiles, it takes little memory whatever the
// model's size.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aio/store/tile_store.h"
#include "runtime/engine/initial_tiles.h"
#include "runtime/engine/ranks/shard_map.h"
#include "tiering/unit.h"

namespace penstock::engine {

struct NewSet {
  uint32_t ranks = 1, group_ranks = 1;
  // Where each rank's store is to lie.
  std::vector<std::vector<std::shared_ptr<aio::DriveFolder>>> drives;
  aio::Existing existing = aio::Existing::refuse;  // what is done about stores of any rank that are there already
  std::string config_hash, trainer_state;          // of the roots
};

// What a rank has of the model; one that is alone has all of it.
RankWorkload rank_workload(const Workload& model, const ShardMap& map, uint32_t rank);
StoreShape rank_shape(const RankWorkload& cut, const TileMap& tiles, uint32_t rank, uint32_t ranks);
// Of the rank's units, by the model's values; a unit that stands in for none has zeros. All outlive it.
InitialValues values_of_rank(const InitialValues& of_model, const RankWorkload& cut, const ShardMap& map,
                             uint32_t rank);

class SetContent {
 public:
  virtual ~SetContent() = default;
  // What fill_of() is given to work in.
  virtual uint64_t memory_bytes() const { return 0; }
  // Config hash and trainer's state are the set's.
  virtual RootPayload root_of(const RankWorkload& cut) const = 0;
  // For the tiles of one rank's store; before it is asked for those of another they have been filled, or it has failed.
  // All that is named outlives it.
  virtual aio::FillTile fill_of(uint32_t rank, const RankWorkload& cut, const ShardMap& map, const StoreShape& shape,
                                std::span<std::byte> memory) = 0;
};

struct SetSizes {
  uint32_t slots = 2;
  uint64_t tile_elements = 0;
};

// The bytes that were written. A set of which something failed is removed again; one whose making was killed cannot be
// opened, and the next make_set() replaces it: no store is complete before all are made.
Result<uint64_t> make_set(IoEngine& io, const Workload& model, const NewSet& wanted, const SetSizes& sizes,
                          SetContent& content, const aio::ScrubProgress& progress = {});

}  // namespace penstock::engine
