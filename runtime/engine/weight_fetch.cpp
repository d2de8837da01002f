#include "runtime/engine/weight_fetch.h"

#include <memory>
#include <utility>

#include "runtime/engine/join.h"
#include "runtime/engine/tile_checksums.h"

namespace penstock::engine {

uint64_t read_unit(const WeightSource& source, uint32_t unit, BufferArea& area, uint64_t offset_bytes,
                   uint64_t deadline, std::function<void(Result<ArrivedUnit>)> then) {
  auto arrived = std::make_shared<ArrivedUnit>();
  auto join = std::make_shared<Join>([&store = source.store, arrived, answer = std::move(then)](const Status& status) {
    if (!status.ok()) end_reads(store, *arrived);
    answer(status.ok() ? Result<ArrivedUnit>(std::move(*arrived)) : status);
  });
  uint64_t asked_bytes = 0;
  for (TileId tile = source.tiles.first_of(unit); tile < source.tiles.first_of(unit + 1); ++tile) {
    const aio::TileStore::Range weight{0, source.tiles[tile].weight_bytes};
    std::optional<aio::TileStore::Reading> reading = source.store.begin_read(tile, weight);
    CHECK(reading.has_value(), "the weight of tile ", tile, " is fetched while it is written");
    join->begin();
    Lease place = area.lend(offset_bytes + asked_bytes, weight.length_bytes);
    asked_bytes += weight.length_bytes;
    arrived->push_back({*reading, weight, place.data()});
    source.io.read(reading->extents, std::move(place), deadline)
        .then([&store = source.store, join, from = reading->place](Result<Lease> result) {
          const Status status = store.read_status(from, result.status());
          { const Lease read = result.ok() ? std::move(*result) : Lease(); }
          join->end(status);
        });
  }
  join->end();
  return asked_bytes;
}

void end_reads(aio::TileStore& store, const ArrivedUnit& unit) {
  for (const ArrivedWeights& tile : unit) store.end_read(tile.reading.place);
}

void check_unit(aio::TileStore& store, cpu_optim::UpdateWorkers& workers, ArrivedUnit unit, Post post,
                std::function<void(Status)> then) {
  const auto all = std::make_shared<const ArrivedUnit>(std::move(unit));
  auto join = std::make_shared<Join>([&store, all, answer = std::move(then)](const Status& status) {
    end_reads(store, *all);
    answer(status);
  });
  for (const ArrivedWeights& tile : *all) {
    join->begin();
    find_mismatch(workers, store.shape(), tile.reading, tile.range, tile.bytes,
                  [&store, post, join, place = tile.reading.place](uint64_t block) {
                    post([&store, join, place, block] {
                      join->end(block == kNoBlock ? Status() : store.checksum_mismatch(place, block).within("read"));
                    });
                  });
  }
  join->end();
}

}  // namespace penstock::engine
