// Reshard makes the stores of a world of ranks out of the stores of another: every plane of every tile, the counts of
// updates and the step are the same bits, cut among other ranks.
//
// The set is read as it lies, block by block against its checksums, and never written. Beside tables, which grow with
// the number of tiles, it takes kReshardBytes of memory whatever the model's size.
#pragma once

#include <memory>
#include <span>

#include "aio/store/tile_store.h"
#include "runtime/engine/drive_bytes.h"
#include "runtime/engine/ranks/set_making.h"
#include "tiering/unit.h"

namespace penstock::engine {

constexpr uint64_t kReshardBytes = 36 * kMiB;

// A world's stores, open at one step, by rank.
struct StoreSet {
  std::span<const std::unique_ptr<aio::TileStore>> stores;
  uint32_t group_ranks = 1;  // how many of them have all of the model together, as in RankedOptions
};

// As make_set(). Refuses a set that is not whole, or not of `model`. REQUIRES: the folders of both differ.
Result<DriveBytes> reshard(IoEngine& io, const StoreSet& set, const Workload& model, const NewSet& wanted,
                           const aio::ScrubProgress& progress = {});

}  // namespace penstock::engine
