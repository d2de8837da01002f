#include "runtime/engine/weight_fetch.h"

#include <memory>
#include <utility>

#include "runtime/engine/join.h"
#include "runtime/engine/tile_checksums.h"

namespace penstock::engine {

uint64_t read_unit(const WeightSource& source, uint32_t unit, BufferArea& area, uint64_t offset_bytes,
                   uint64_t deadline, std::function<void(Status)> then) {
  auto join = std::make_shared<Join>(std::move(then));
  uint64_t asked_bytes = 0;
  for (TileId tile = source.tiles.first_of(unit); tile < source.tiles.first_of(unit + 1); ++tile) {
    const aio::TileStore::Range weight{0, source.tiles[tile].weight_bytes};
    std::optional<aio::TileStore::Reading> reading = source.store.begin_read(tile, weight);
    CHECK(reading.has_value(), "the weight of tile ", tile, " is fetched while it is written");
    join->begin();
    Lease place = area.lend(offset_bytes + asked_bytes, weight.length_bytes);
    asked_bytes += weight.length_bytes;
    source.io.read(reading->extents, std::move(place), deadline)
        .then([&store = source.store, weight, join, from = *reading](Result<Lease> result) {
          Status status = store.read_status(from.place, result.status());
          if (status.ok()) {
            const Lease arrived = std::move(*result);
            status = compare_checksums(store, from, weight, arrived.data());
          }
          store.end_read(from.place);
          join->end(status);
        });
  }
  join->end();
  return asked_bytes;
}

}  // namespace penstock::engine
