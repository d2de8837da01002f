#include "runtime/engine/tile_checksums.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "cpu_optim/checksum.h"
#include "tiering/arithmetic/checksum.h"

namespace penstock::engine {
namespace {

uint64_t checksum_of(TileId tile, uint64_t number, const TileBlock& block, const std::byte* bytes) {
  const std::span<const std::byte> run(bytes + block.offset_bytes, block.length_bytes);
  return cpu_optim::checksum_function()(run, checksum_seed(tile, number));
}

// Those of the tile's blocks that lie in `range`.
std::vector<uint64_t> blocks_in(const StoreShape& shape, TileId tile, aio::TileStore::Range range) {
  const TileLayout layout = shape.layout(tile);
  const uint64_t end = range.offset_bytes + range.length_bytes, count = checksum_count(shape, tile);
  std::vector<uint64_t> numbers;
  for (uint64_t number = 0; number < count; ++number) {
    const TileBlock block = block_of(layout, shape.tiles[tile].elements, number);
    if (block.offset_bytes < range.offset_bytes || block.offset_bytes + block.length_bytes > end) continue;
    numbers.push_back(number);
  }
  return numbers;
}

// The first of these blocks that is not what was written.
uint64_t first_mismatch(const StoreShape& shape, const aio::TileStore::Reading& reading,
                        std::span<const uint64_t> numbers, const std::byte* bytes) {
  const TileId tile = reading.place.tile;
  const TileLayout layout = shape.layout(tile);
  const auto differs = [&](uint64_t number) {
    const TileBlock block = block_of(layout, shape.tiles[tile].elements, number);
    return checksum_of(tile, number, block, bytes) != reading.checksums[number];
  };
  const auto found = std::ranges::find_if(numbers, differs);
  return found == numbers.end() ? kNoBlock : *found;
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
  const StoreShape& shape = store.shape();
  const uint64_t block = first_mismatch(shape, reading, blocks_in(shape, reading.place.tile, range), bytes);
  return block == kNoBlock ? Status() : store.checksum_mismatch(reading.place, block).within("read");
}

void find_mismatch(cpu_optim::UpdateWorkers& workers, const StoreShape& shape, aio::TileStore::Reading reading,
                   aio::TileStore::Range range, const std::byte* bytes, std::function<void(uint64_t block)> then) {
  auto first = std::make_shared<std::atomic<uint64_t>>(kNoBlock);
  std::vector<uint64_t> numbers = blocks_in(shape, reading.place.tile, range);
  CHECK(!numbers.empty(), "tile ", reading.place.tile, " has no block in ", range.length_bytes, " B");
  const uint64_t count = numbers.size();
  workers.enqueue_pieces(
      count, 1,
      [first, &shape, bytes, all = std::move(numbers), read = std::move(reading)](uint64_t begin, uint64_t end) {
        const uint64_t mine = first_mismatch(shape, read, std::span(all).subspan(begin, end - begin), bytes);
        uint64_t found = first->load();
        while (mine < found && !first->compare_exchange_weak(found, mine)) continue;
      },
      [first, answer = std::move(then)] { answer(first->load()); });
}

}  // namespace penstock::engine
