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

bool lies_in(const TileBlock& block, aio::TileStore::Range range) {
  return block.offset_bytes >= range.offset_bytes &&
         block.offset_bytes + block.length_bytes <= range.offset_bytes + range.length_bytes;
}

// The first block of the reading from `begin` to before `end` that lies in `range` and is not what was written.
uint64_t first_mismatch(const StoreShape& shape, const aio::TileStore::Reading& reading, aio::TileStore::Range range,
                        const std::byte* bytes, uint64_t begin, uint64_t end) {
  const TileId tile = reading.place.tile;
  const TileLayout layout = shape.layout(tile);
  for (uint64_t number = begin; number < end; ++number) {
    const TileBlock block = block_of(layout, shape.tiles[tile].elements, number);
    if (lies_in(block, range) && checksum_of(tile, number, block, bytes) != reading.checksums[number]) return number;
  }
  return kNoBlock;
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
  const uint64_t block = first_mismatch(store.shape(), reading, range, bytes, 0, reading.checksums.size());
  return block == kNoBlock ? Status() : store.checksum_mismatch(reading.place, block).within("read");
}

void find_mismatch(cpu_optim::UpdateWorkers& workers, const StoreShape& shape, aio::TileStore::Reading reading,
                   aio::TileStore::Range range, const std::byte* bytes, std::function<void(uint64_t block)> then) {
  auto first = std::make_shared<std::atomic<uint64_t>>(kNoBlock);
  // Workers share what there is to do: the blocks before and behind the range are none of it.
  const TileId tile = reading.place.tile;
  const TileLayout layout = shape.layout(tile);
  auto is_outside = [&](uint64_t number) {
    return !lies_in(block_of(layout, shape.tiles[tile].elements, number), range);
  };
  uint64_t before = 0, end_of_all = reading.checksums.size();
  while (before < end_of_all && is_outside(before)) ++before;
  while (end_of_all > before && is_outside(end_of_all - 1)) --end_of_all;
  workers.enqueue_pieces(
      std::max<uint64_t>(1, end_of_all - before), 1,
      [first, &shape, range, bytes, before, end_of_all, read = std::move(reading)](uint64_t begin, uint64_t end) {
        const uint64_t last = std::min(before + end, end_of_all);
        const uint64_t mine = first_mismatch(shape, read, range, bytes, before + begin, last);
        uint64_t found = first->load();
        while (mine < found && !first->compare_exchange_weak(found, mine)) continue;
      },
      [first, answer = std::move(then)] { answer(first->load()); });
}

}  // namespace penstock::engine
