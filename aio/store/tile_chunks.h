// Going through all tiles of a store in chunks of bounded size: for making one, and for reading one through.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "aio/store/store_io.h"
#include "tiering/io_engine.h"
#include "tiering/store/slot_table.h"
#include "tiering/store/store_layout.h"
#include "tiering/store/store_shape.h"

namespace penstock::aio {

constexpr uint64_t kChunkBytes = kMiB;
// Enough of them to keep a drive busy. More would not stay in a cache from being filled to being moved.
constexpr uint64_t kChunksUnderWay = 16;

// A run of one plane of one tile; holds whole checksum blocks.
struct TileChunk {
  TileId tile = 0;
  uint32_t plane = 0;
  uint64_t plane_offset_bytes = 0;
  uint64_t tile_offset_bytes = 0;
  uint64_t length_bytes = 0;

  // As it lies on the drives, where every plane is padded.
  uint64_t padded_bytes() const { return round_up(length_bytes, kSegmentAlignmentBytes); }
};

std::vector<TileChunk> chunks_of(const StoreShape& shape, TileId tile);

// Calls `visit` with each checksum block of the chunk that lies in `bytes`.
using VisitBlock = std::function<void(uint64_t checksum_number, const TileBlock& block, std::span<std::byte> bytes)>;
void for_each_block(const StoreShape& shape, const TileChunk& chunk, std::span<std::byte> bytes,
                    const VisitBlock& visit);

// Of a run of a tile in one of its slots; the run's first byte lies at `lease_offset_bytes`.
std::vector<Extent> extents_of(const StoreLayout& layout, const StoreFiles& files, TileSlot place,
                               uint64_t offset_bytes, uint64_t length_bytes, uint64_t lease_offset_bytes = 0);

// Adds an extent, joined to the last one where it goes on in the same file and in the lease: what lies together is
// asked for together.
void append(std::vector<Extent>& extents, const Extent& extent);

// The sectors of a file in which a block of a tile begins.
struct BlockPlace {
  std::string file;
  uint64_t offset_bytes = 0;
};
BlockPlace place_of(const StoreLayout& layout, const StoreFiles& files, TileSlot slot, const TileBlock& block);

}  // namespace penstock::aio
