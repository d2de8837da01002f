// Checksums of a tile's blocks where no update looks at them.
#pragma once

#include <span>
#include <vector>

#include "aio/store/tile_store.h"

namespace penstock::engine {

std::vector<uint64_t> checksums_of(const StoreShape& shape, uint32_t tile, const std::byte* bytes);

// Of `bytes`, the tile's place, those in `range` are looked at; `expected` are the whole tile's.
Status compare_checksums(const StoreShape& shape, uint32_t tile, aio::TileStore::Range range, const std::byte* bytes,
                         std::span<const uint64_t> expected);

}  // namespace penstock::engine
