#include "aio/store/tile_chunks.h"

#include <algorithm>

namespace penstock::aio {

std::vector<TileChunk> chunks_of(const StoreShape& shape, TileId tile) {
  TileLayout layout = shape.layout(tile);
  std::vector<TileChunk> chunks;
  for (uint32_t plane = 0; plane < layout.places.size(); ++plane) {
    const TileLayout::Place& place = layout.places[plane];
    for (uint64_t at = 0; at < place.length_bytes; at += kChunkBytes) {
      uint64_t length = std::min(kChunkBytes, place.length_bytes - at);
      chunks.push_back({tile, plane, at, place.offset_bytes + at, length});
    }
  }
  return chunks;
}

void for_each_block(const StoreShape& shape, const TileChunk& chunk, std::span<std::byte> bytes,
                    const VisitBlock& visit) {
  const TileLayout layout = shape.layout(chunk.tile);
  const uint64_t planes = layout.places.size();
  const uint64_t block_bytes = layout.places[chunk.plane].plane.bytes(kBlockElements);
  CHECK(chunk.plane_offset_bytes % block_bytes == 0, "a chunk at ", chunk.plane_offset_bytes, " B cuts a block");
  for (uint64_t at = 0; at < chunk.length_bytes; at += block_bytes) {
    uint64_t number = (chunk.plane_offset_bytes + at) / block_bytes * planes + chunk.plane;
    TileBlock block = block_of(layout, shape.tiles[chunk.tile].elements, number);
    visit(number, block, bytes.subspan(at, block.length_bytes));
  }
}

std::vector<Extent> extents_of(const StoreLayout& layout, const StoreFiles& files, TileSlot place,
                               uint64_t offset_bytes, uint64_t length_bytes, uint64_t lease_offset_bytes) {
  std::vector<Extent> extents;
  for (const StoreLayout::FileRange& piece : layout.file_ranges(place.tile, place.slot, offset_bytes, length_bytes)) {
    extents.push_back({files[piece.drive].get(), piece.file_offset_bytes,
                       lease_offset_bytes + (piece.tile_offset_bytes - offset_bytes), piece.length_bytes});
  }
  return extents;
}

void append(std::vector<Extent>& extents, const Extent& extent) {
  if (!extents.empty()) {
    Extent& last = extents.back();
    if (extent.file == last.file && extent.offset_bytes == last.offset_bytes + last.length_bytes &&
        extent.lease_offset_bytes == last.lease_offset_bytes + last.length_bytes) {
      last.length_bytes += extent.length_bytes;
      return;
    }
  }
  extents.push_back(extent);
}

BlockPlace place_of(const StoreLayout& layout, const StoreFiles& files, TileSlot slot, const TileBlock& block) {
  const uint64_t first_sector = round_down(block.offset_bytes, kAlignmentBytes);
  const StoreLayout::FileRange piece = layout.file_ranges(slot.tile, slot.slot, first_sector, kAlignmentBytes).front();
  return {files[piece.drive]->path(), piece.file_offset_bytes + (block.offset_bytes - first_sector)};
}

}  // namespace penstock::aio
