#include "runtime/engine/weight_fetch.h"

#include <memory>
#include <utility>

#include "runtime/engine/join.h"
#include "runtime/engine/tile_checksums.h"

namespace penstock::engine {
namespace {

// Of a tile that has come: what has been read is held until it has been compared.
void compare(const WeightSource& source, const aio::TileStore::Reading& reading, aio::TileStore::Range weight,
             Lease arrived, const std::shared_ptr<Join>& join) {
  const std::byte* const bytes = arrived.data();
  find_mismatch(source.workers, source.store.shape(), reading, weight, bytes,
                [&store = source.store, post = source.post, join, place = reading.place,
                 read = std::make_shared<Lease>(std::move(arrived))](uint64_t block) mutable {
                  // Leases end where they began.
                  post([&store, join, place, block, held = std::move(read)]() mutable {
                    held.reset();
                    store.end_read(place);
                    join->end(block == kNoBlock ? Status() : store.checksum_mismatch(place, block).within("read"));
                  });
                });
}

}  // namespace

uint64_t read_unit(const WeightSource& source, uint32_t unit, BufferArea& area, uint64_t offset_bytes,
                   uint64_t deadline, std::function<void(Status)> then, const std::function<bool(TileId)>& is_there) {
  auto join = std::make_shared<Join>(std::move(then));
  uint64_t asked_bytes = 0;
  for (TileId tile = source.tiles.first_of(unit); tile < source.tiles.first_of(unit + 1); ++tile) {
    const aio::TileStore::Range weight{0, source.tiles[tile].weight_bytes};
    const uint64_t place_offset_bytes = std::exchange(offset_bytes, offset_bytes + weight.length_bytes);
    if (is_there && is_there(tile)) continue;
    std::optional<aio::TileStore::Reading> reading = source.store.begin_read(tile, weight);
    CHECK(reading.has_value(), "the weight of tile ", tile, " is fetched while it is written");
    join->begin();
    Lease place = area.lend(place_offset_bytes, weight.length_bytes);
    asked_bytes += weight.length_bytes;
    source.io.read(reading->extents, std::move(place), deadline)
        .then([source, weight, join, from = *reading](Result<Lease> result) {
          if (result.ok()) return compare(source, from, weight, std::move(*result), join);
          source.store.end_read(from.place);
          join->end(source.store.read_status(from.place, result.status()));
        });
  }
  join->end();
  return asked_bytes;
}

}  // namespace penstock::engine
