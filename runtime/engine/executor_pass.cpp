// The moves of a training pass: weights arrive where they are used, and computing is granted to the trainer.
#include <cstring>
#include <utility>

#include "runtime/engine/executor.h"
#include "runtime/engine/tile_checksums.h"

namespace penstock::engine {

void Executor::begin_fetch(Ticket ticket, const Move& move) {
  struct Fetch {
    size_t left = 0;
    Status status;
  };
  auto fetch = std::make_shared<Fetch>();
  auto end_one = [this, ticket, fetch](const Status& status) {
    if (!status.ok() && fetch->status.ok()) fetch->status = status;
    if (--fetch->left > 0) return;
    const Move& of = parts_.plan.moves[ticket.move];
    // From now on it is only read, until the plan releases it.
    if (fetch->status.ok()) {
      placed_[{ticket.step, ticket.move}] = parts_.memory.units().share(of.place_offset_bytes, of.place_bytes);
    }
    ended(ticket, fetch->status);
  };
  ++fetch->left;  // until all requests are made, for one may end at once
  uint64_t at = move.place_offset_bytes;
  for (TileId tile = parts_.plan.tiles.first_of(move.unit); tile < parts_.plan.tiles.first_of(move.unit + 1); ++tile) {
    const aio::TileStore::Range weight{0, parts_.plan.tiles[tile].weight_bytes};
    std::optional<aio::TileStore::Reading> reading = parts_.store.begin_read(tile, weight);
    CHECK(reading.has_value(), "the weight of tile ", tile, " is fetched while it is written");
    ++fetch->left;
    moved_.read_bytes += weight.length_bytes;
    parts_.io.read(reading->extents, parts_.memory.units().lend(at, weight.length_bytes), deadline(ticket))
        .then([this, weight, end_one, from = *reading](Result<Lease> result) mutable {
          Status status = result.status();
          if (status.ok()) {
            const Lease arrived = std::move(*result);
            status = compare_checksums(parts_.store, from, weight, arrived.data());
          }
          parts_.store.end_read(from.place);
          end_one(status);
        });
    at += weight.length_bytes;
  }
  end_one(Status());
}

void Executor::begin_compute(Ticket ticket) {
  Grant& grant = granted_[{ticket.step, ticket.move}];
  for (const Compute::Weights& weights : computes_.at(ticket.move)->weights) {
    if (weights.brought_by == kNoMove) {
      grant.weights.push_back(parts_.memory.share_unit(weights.unit));
    } else {
      const Move& brought = parts_.plan.moves[weights.brought_by];
      grant.weights.push_back(parts_.memory.units().share(brought.place_offset_bytes, brought.place_bytes));
    }
  }
}

std::vector<std::span<std::byte>> Executor::weights_of(const Compute& compute) const {
  std::vector<std::span<std::byte>> views;
  for (const Lease& lease : granted_.at({round(), compute.move}).weights) views.push_back(lease.bytes());
  return views;
}

void Executor::end_compute(MoveId compute) {
  granted_.erase({round(), compute});
  ended({round(), compute}, Status());
}

}  // namespace penstock::engine
