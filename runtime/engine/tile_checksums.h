// Checksums of a tile's blocks where no update looks at them.
#pragma once

#include <span>
#include <vector>

#include "aio/store/tile_store.h"

namespace penstock::engine {

std::vector<uint64_t> checksums_of(const StoreShape& shape, TileId tile, const std::byte* bytes);

// Compares what of the slot's tile lies in `range` with the checksums that it was written with. `bytes`: the whole
// tile's place.
Status compare_checksums(const aio::TileStore& store, const aio::TileStore::Reading& reading,
                         aio::TileStore::Range range, const std::byte* bytes);

}  // namespace penstock::engine
