#include "runtime/engine/tile_checksums.h"

#include "cpu_optim/checksum.h"
#include "tiering/arithmetic/checksum.h"

namespace penstock::engine {
namespace {

uint64_t checksum_of(TileId tile, uint64_t number, const TileBlock& block, const std::byte* bytes) {
  const std::span<const std::byte> run(bytes + block.offset_bytes, block.length_bytes);
  return cpu_optim::checksum_function()(run, checksum_seed(tile, number));
}

}  // namespace

std::vector<uint64_t> checksums_of(const StoreShape& shape, TileId tile, const std::byte* bytes) {
  const TileLayout layout = shape.layout(tile);
  std::vector<uint64_t> sums(checksum_count(shape, tile));
  for (uint64_t number = 0; number < sums.size(); ++number) {
    sums[number] = checksum_of(tile, number, block_of(layout, shape.tiles[tile].elements, number), bytes);
  }
  return sums;
}

Status compare_checksums(const aio::TileStore& store, const aio::TileStore::Reading& reading,
                         aio::TileStore::Range range, const std::byte* bytes) {
  const TileId tile = reading.place.tile;
  const StoreShape& shape = store.shape();
  const TileLayout layout = shape.layout(tile);
  const uint64_t end = range.offset_bytes + range.length_bytes;
  for (uint64_t number = 0; number < reading.checksums.size(); ++number) {
    const TileBlock block = block_of(layout, shape.tiles[tile].elements, number);
    if (block.offset_bytes < range.offset_bytes || block.offset_bytes + block.length_bytes > end) continue;
    if (checksum_of(tile, number, block, bytes) == reading.checksums[number]) continue;
    return store.checksum_mismatch(reading.place, number).within("read");
  }
  return Status();
}

}  // namespace penstock::engine
