// Checksums of a tile's blocks where no update looks at them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "aio/store/tile_store.h"
#include "cpu_optim/update_workers.h"

namespace penstock::engine {

std::vector<uint64_t> checksums_of(const StoreShape& shape, TileId tile, const std::byte* bytes);

// Compares what of the slot's tile lies in `range` with the checksums that it was written with. `bytes`: the whole
// tile's place.
Status compare_checksums(const aio::TileStore& store, const aio::TileStore::Reading& reading,
                         aio::TileStore::Range range, const std::byte* bytes);

// The same by the workers, with `bytes` at their disposal until they call `then` with the first block that differs, or
// kNoBlock: on one of them. REQUIRES: a block lies in `range`.
constexpr uint64_t kNoBlock = ~uint64_t{0};
void find_mismatch(cpu_optim::UpdateWorkers& workers, const StoreShape& shape, aio::TileStore::Reading reading,
                   aio::TileStore::Range range, const std::byte* bytes, std::function<void(uint64_t block)> then);

}  // namespace penstock::engine
