// The update's moves: a tile's state is read, updated and written; its gradient leaves and returns.
#include <utility>

#include "runtime/engine/executor.h"
#include "runtime/engine/join.h"
#include "runtime/engine/tile_checksums.h"

namespace penstock::engine {
namespace {

// The extents that lie before `boundary` of a tile's bytes and those behind it, each counting from its own first byte.
struct Halves {
  std::vector<Extent> before, behind;
};

Halves cut_at(const std::vector<Extent>& extents, uint64_t boundary) {
  Halves halves;
  for (Extent rest : extents) {
    if (rest.lease_offset_bytes < boundary) {
      Extent first = rest;
      first.length_bytes = std::min(rest.length_bytes, boundary - rest.lease_offset_bytes);
      halves.before.push_back(first);
      rest.offset_bytes += first.length_bytes;
      rest.lease_offset_bytes += first.length_bytes;
      rest.length_bytes -= first.length_bytes;
    }
    if (rest.length_bytes == 0) continue;
    rest.lease_offset_bytes -= boundary;
    halves.behind.push_back(rest);
  }
  return halves;
}

}  // namespace

void Executor::move_tile(Ticket ticket, TileId tile, Way way, const std::vector<Extent>& extents,
                         std::function<void(Status)> then) {
  TileWork& tile_work = work(ticket, tile);
  // Weight and state are neighbours on the drive, and may be strangers in memory: then each is a request of its own.
  auto join = std::make_shared<Join>(std::move(then));
  auto request = [&](const std::vector<Extent>& part, Lease lease, bool is_window) {
    Transfer transfer = way == Way::in ? parts_.io.read(part, std::move(lease), deadline(ticket))
                                       : parts_.io.write(part, std::move(lease), deadline(ticket));
    join->begin();
    std::move(transfer).then([this, ticket, tile, is_window, join](Result<Lease> result) {
      const Status status = result.status();
      if (status.ok()) {
        Lease arrived = std::move(*result);  // the lease on what rests in host memory ends here
        if (is_window) work(ticket, tile).window = std::move(arrived);
      }
      join->end(status);
    });
  };
  HostMemory& memory = parts_.memory;
  const bool holds_weight = memory.holds_weight(tile), holds_state = memory.holds_state(tile);
  if (!holds_weight && !holds_state) {
    request(extents, std::move(tile_work.window), true);
    return join->end();
  }
  const Halves halves = cut_at(extents, parts_.plan.tiles[tile].weight_bytes);
  if (!halves.before.empty()) {
    request(halves.before, way == Way::in ? memory.lend_weight(tile) : memory.share_weight(tile), false);
  }
  if (!halves.behind.empty() && holds_state) {
    request(halves.behind, way == Way::in ? memory.lend_state(tile) : memory.share_state(tile), false);
  } else if (!halves.behind.empty()) {
    std::vector<Extent> behind_weight = halves.behind;
    for (Extent& extent : behind_weight) extent.lease_offset_bytes += parts_.plan.tiles[tile].weight_bytes;
    request(behind_weight, std::move(tile_work.window), true);
  }
  join->end();
}

bool Executor::is_restored(Ticket ticket) const {
  const Move& move = parts_.plan.moves[ticket.move];
  return move.kind == MoveKind::reread_state && run_.speculation(ticket.step).is_restored(move.tile);
}

void Executor::begin_read(Ticket ticket, const Move& move) {
  const Tile& tile = parts_.plan.tiles[move.tile];
  TileWork& tile_work = work(ticket, move.tile);
  std::optional<Lease> window = parts_.memory.windows().try_lease();
  CHECK(window.has_value(), "the plan counted a window that the pool does not have");
  tile_work.window = std::move(*window);
  // A weight that is in memory already is not read, except where a speculative update has changed it.
  const bool weight_too = move.bytes == tile.slot_bytes() || move.kind == MoveKind::reread_state;
  const aio::TileStore::Range range = weight_too ? aio::TileStore::Range{0, tile.slot_bytes()}
                                                 : aio::TileStore::Range{tile.weight_bytes, tile.state_bytes};
  tile_work.reading = parts_.store.begin_read(move.tile, range, range.offset_bytes);
  CHECK(tile_work.reading.has_value(), "tile ", move.tile, " is read while it is written");
  drive_bytes_.read_bytes += range.length_bytes;
  move_tile(ticket, move.tile, Way::in, tile_work.reading->extents,
            [this, ticket](Status status) { read_ended(ticket, status); });
}

void Executor::give_back_read_slot(TileWork& tile_work) {
  if (!tile_work.reading) return;
  parts_.store.end_read(tile_work.reading->place);
  tile_work.reading.reset();
}

void Executor::read_ended(Ticket ticket, const Status& status) {
  const Move& move = parts_.plan.moves[ticket.move];
  TileWork& tile_work = work(ticket, move.tile);
  Status arrived = parts_.store.read_status(tile_work.reading->place, status);
  // Checksums are compared by the update, so the slot stays ours until then. None follows where a skipped step takes
  // back the weight that it had changed.
  if (arrived.ok() && is_restored(ticket)) {
    const aio::TileStore::Range weight{0, parts_.plan.tiles[move.tile].weight_bytes};
    const Lease restored = parts_.memory.share_weight(move.tile);
    arrived = compare_checksums(parts_.store, *tile_work.reading, weight, restored.data());
  }
  if (!arrived.ok()) give_back_read_slot(tile_work);
  ended(ticket, arrived);
}

uint64_t Executor::place_of_weight(const Move& fetch, const Tile& tile) const {
  return fetch.place_offset_bytes + tile.first_element * bytes_of(parts_.workload.form.weight);
}

void Executor::begin_update(Ticket ticket, const Move& move) {
  const Tile& tile = parts_.plan.tiles[move.tile];
  const MoveId copy = parts_.plan.of_tile[move.tile].weight_copy;
  TileWork& tile_work = work(ticket, move.tile);
  HostMemory& memory = parts_.memory;
  auto leases = std::make_shared<UpdateLeases>();
  if (memory.holds_weight(move.tile)) {
    leases->weight = memory.lend_weight(move.tile);
  } else if (copy != kNoMove && move.kind == MoveKind::update) {
    leases->weight = memory.units().share(place_of_weight(parts_.plan.moves[copy], tile), tile.weight_bytes);
  }
  if (memory.holds_state(move.tile)) leases->state = memory.lend_state(move.tile);

  std::byte* const window = tile_work.window.data();
  std::byte* const state = leases->state ? leases->state.data() : window + tile.weight_bytes;
  std::byte* const weight = memory.holds_weight(move.tile) ? leases->weight.data() : window;
  const Lease& gradient = tile_work.fetched_gradient ? tile_work.fetched_gradient : tile_work.gradient;
  CHECK(static_cast<bool>(gradient), "tile ", move.tile, " is updated without its gradient");
  leases->gradient = gradient.also();
  if (tile_work.window) leases->window = tile_work.window.also();
  if (const std::optional<Ticket> fetch = run_.leaves_weight_to(ticket)) {
    leases->left = memory.units().lend(place_of_weight(parts_.plan.moves[fetch->move], tile), tile.weight_bytes);
  }

  const TileLayout layout(parts_.workload.form, tile.elements);
  cpu_optim::TileJob job;
  job.updater = &updater_;
  job.tile = cpu_optim::TileView::in_place(layout, state, weight, gradient.data(), tile.elements, first_numbered(tile));
  if (leases->weight) job.tile.weight.source = leases->weight.data();
  tile_work.checksums.resize(updater_.checksum_count(tile.elements));
  job.notes.checksum_seed = checksum_seed(move.tile, 0);
  job.notes.target_checksums = tile_work.checksums;
  if (tile_work.reading) job.notes.expected_checksums = tile_work.reading->checksums;
  if (leases->left) job.weight_copy = leases->left.data();
  job.numbers = open_steps_.at(ticket.step).numbers(move.unit);
  const std::span<const std::byte> updated(weight, tile.elements * bytes_of(parts_.workload.form.weight));
  parts_.workers.enqueue(job, [this, ticket, leases, &tile, updated](const cpu_optim::TileReport& report) mutable {
    if (parts_.on_updated && report.ok()) parts_.on_updated(tile.unit, tile.first_element, updated);
    // Leases end where they began.
    parts_.mailbox.post([this, ticket, report, held = std::move(leases)]() mutable {
      held.reset();
      update_ended(ticket, report);
    });
  });
}

void Executor::update_ended(Ticket ticket, const cpu_optim::TileReport& report) {
  const Move& move = parts_.plan.moves[ticket.move];
  TileWork& tile_work = work(ticket, move.tile);
  Status status;
  if (report.checksum_mismatch != cpu_optim::TileReport::kNone) {
    status = parts_.store.checksum_mismatch(tile_work.reading->place, report.checksum_mismatch).within("update");
  }
  give_back_read_slot(tile_work);
  if (parts_.memory.holds_state(move.tile)) unwritten_[move.tile] = tile_work.checksums;
  ended(ticket, status);
}

void Executor::begin_write(Ticket ticket, const Move& move) {
  TileWork& tile_work = work(ticket, move.tile);
  const bool came_down = parts_.plan.placements[move.tile].state_on_device();
  if (came_down && !tile_work.window) return ended(ticket, Status(), /*moved=*/false);
  if (parts_.memory.holds_state(move.tile)) {
    // Its last update may have been in an earlier step, and written then.
    auto unwritten = unwritten_.find(move.tile);
    if (unwritten == unwritten_.end()) return ended(ticket, Status(), /*moved=*/false);
    tile_work.checksums = unwritten->second;
  }
  const bool revocable = run_.speculation(ticket.step).write_may_be_taken_back(move.tile);
  auto begun = parts_.store.begin_write(move.tile, revocable ? NewVersion::unconfirmed : NewVersion::final);
  if (!begun.ok()) return ended(ticket, begun.status());
  const std::optional<aio::TileStore::Writing>& writing = *begun;
  if (!writing) return held_back_.push_back(ticket);
  unwritten_.erase(move.tile);
  drive_bytes_.written_bytes += parts_.plan.tiles[move.tile].slot_bytes();
  move_tile(ticket, move.tile, Way::out, writing->extents,
            [this, ticket, place = writing->place](Status status) { write_ended(ticket, place, status); });
}

void Executor::write_ended(Ticket ticket, TileSlot place, const Status& status) {
  TileWork& tile_work = work(ticket, place.tile);
  if (status.ok()) {
    parts_.store.written(place, tile_work.checksums);
  } else {
    parts_.store.write_failed(place, status);
  }
  ended(ticket, status);
}

void Executor::begin_spill(Ticket ticket, const Move& move) {
  Extent place = parts_.spill.place_of(move.tile);
  drive_bytes_.written_bytes += place.length_bytes;
  // An update may read the same bytes meanwhile.
  Lease gradient = work(ticket, move.tile).gradient.also();
  parts_.io.write({&place, 1}, std::move(gradient), deadline(ticket)).then([this, ticket](Result<Lease> result) {
    const Status status = result.status();
    { const Lease written = result.ok() ? std::move(*result) : Lease(); }
    ended(ticket, status);
  });
}

void Executor::begin_fetch_gradient(Ticket ticket, const Move& move) {
  std::optional<Lease> lease = parts_.memory.fetched_gradients().try_lease();
  CHECK(lease.has_value(), "the plan counted a place for a fetched gradient that the pool does not have");
  Extent place = parts_.spill.place_of(move.tile);
  drive_bytes_.read_bytes += place.length_bytes;
  const TileId tile = move.tile;
  parts_.io.read({&place, 1}, std::move(*lease), deadline(ticket)).then([this, ticket, tile](Result<Lease> result) {
    if (result.ok()) work(ticket, tile).fetched_gradient = std::move(*result);
    ended(ticket, result.status());
  });
}

}  // namespace penstock::engine
