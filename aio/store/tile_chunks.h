// Tiles cut into chunks of bounded size, for making a store and for reading all of it.
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
// Enough to keep a drive busy. With more, a chunk would leave the processor's cache between being filled and written.
constexpr uint64_t kChunksUnderWay = 16;

// A part of one plane of one tile, made of whole checksum blocks.
struct TileChunk {
  TileId tile = 0;
  uint32_t plane = 0;
  uint64_t plane_offset_bytes = 0;
  uint64_t tile_offset_bytes = 0;
  uint64_t length_bytes = 0;

  // On the drives every plane is padded.
  uint64_t padded_bytes() const { return round_up(length_bytes, kAlignmentBytes); }
};

std::vector<TileChunk> chunks_of(const StoreShape& shape, TileId tile);

// Calls `visit` with each checksum block of the chunk that lies in `bytes`.
using VisitBlock = std::function<void(uint64_t checksum_number, const TileBlock& block, std::span<std::byte> bytes)>;
void for_each_block(const StoreShape& shape, const TileChunk& chunk, std::span<std::byte> bytes,
                    const VisitBlock& visit);

// Where a part of a tile in one of its slots lies in the files. In the lease it begins at `lease_offset_bytes`.
std::vector<Extent> extents_of(const StoreLayout& layout, const StoreFiles& files, TileSlot place,
                               uint64_t offset_bytes, uint64_t length_bytes, uint64_t lease_offset_bytes = 0);

// Appends an extent, or lengthens the last one if this one continues it both in the file and in the lease.
void append(std::vector<Extent>& extents, const Extent& extent);

// Where a block of a tile begins.
struct BlockPlace {
  std::string file;
  uint64_t offset_bytes = 0;
};
BlockPlace place_of(const StoreLayout& layout, const StoreFiles& files, TileSlot slot, const TileBlock& block);

}  // namespace penstock::aio
