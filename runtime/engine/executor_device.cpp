// The moves of a device with memory of its own. Each is put on its stream behind the events of those before it.
#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/engine/coded_weights.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/tile_checksums.h"

namespace penstock::engine {

void Executor::put_copy(Ticket ticket, Lease source, Lease target, std::function<void(Ticket, Lease)> then) {
  const CopyRun whole{0, 0, std::min(source.size_bytes(), target.size_bytes())};
  put_copy(ticket, {&whole, 1}, std::move(source), std::move(target), std::move(then));
}

void Executor::put_copy(Ticket ticket, std::span<const CopyRun> runs, Lease source, Lease target,
                        std::function<void(Ticket, Lease)> then) {
  Copy copy = parts_.device->device().copy(runs, std::move(source), std::move(target), events_before(ticket));
  on_stream_[{ticket.step, ticket.move}] = copy.done;
  run_.ordered(ticket);
  std::move(copy.transfer).then([this, ticket, done = std::move(then)](Result<Lease> result) {
    if (!result.ok()) return stream_ended(ticket, result.status());
    on_stream_.erase({ticket.step, ticket.move});
    done(ticket, std::move(*result));
  });
}

void Executor::begin_upload_weight(Ticket ticket, const Move& move) {
  Lease weights;
  if (move.source == kNoMove) {
    weights = parts_.memory.share_unit(move.unit);
  } else {
    weights = share_place(parts_.plan.moves[move.source]);
  }
  put_copy(ticket, std::move(weights), place_of({ticket.step, ticket.move}).also(),
           [this](Ticket uploaded, Lease) { ended(uploaded, Status()); });
}

Lease Executor::pass_on(Lease place) {
  Lease kept = place.also();
  parts_.device->pass_on(std::move(place));
  return kept;
}

void Executor::keep_until_end(Ticket ticket, Lease place) {
  in_use_there_[{ticket.step, ticket.move}].push_back(pass_on(std::move(place)));
}

void Executor::put_mark(Ticket ticket, const Event& done) {
  on_stream_[{ticket.step, ticket.move}] = done;
  marked_.push_back(ticket);
  if (const Status woken = parts_.device->device().wake_at(done); !woken.ok()) return fail(woken);
  if (status_.ok()) run_.ordered(ticket);
}

void Executor::begin_dequantise_on_device(Ticket ticket, const Move& move) {
  const CodedUnit unit(parts_.workload, parts_.plan.tiles, move.unit);
  const Result<Event> done =
      dequantise_on(parts_.device->device(), unit, parts_.device->place_of(parts_.plan.moves[move.source]),
                    parts_.device->place_of(move), events_before(ticket));
  if (!done.ok()) return ended(ticket, done.status());
  put_mark(ticket, *done);
}

// What returns may be on its stream before what leaves has ended: the copies share the place's lease, and are ordered
// by their events.
void Executor::begin_download_activation(Ticket ticket, const Move& move) {
  const Lease& place = placed_[{ticket.step, ticket.move}] = lend_place(move);
  put_copy(ticket, place_of({ticket.step, move.source}).also(), place.also(),
           [this](Ticket offloaded, Lease) { ended(offloaded, Status()); });
}

void Executor::begin_upload_activation(Ticket ticket, const Move& move) {
  put_copy(ticket, place_of({ticket.step, move.source}).also(), place_of({ticket.step, ticket.move}).also(),
           [this](Ticket uploaded, Lease) { ended(uploaded, Status()); });
}

// -- gradients --------------------------------------------------------------------------------------------------------

void Executor::note_sources_of_downloads() {
  std::map<std::array<uint32_t, 3>, SumPlace> sources;
  MoveId adds_up = kNoMove;  // the pass that has taken the place for its sums, and for those of passes after it
  for (const Compute& compute : parts_.plan.computes) {
    if (parts_.plan.moves[compute.move].area == Area::device_gradients) adds_up = compute.move;
    for (const Compute::Sum& sum : compute.sums) {
      const uint64_t offset = sum.rounded_offset_bytes.value_or(sum.offset_bytes);
      sources[{compute.use, compute.micro_batch, sum.unit}] = {adds_up,
                                                               offset - parts_.plan.moves[adds_up].place_offset_bytes};
    }
  }
  for (MoveId id = 0; id < parts_.plan.moves.size(); ++id) {
    const Move& move = parts_.plan.moves[id];
    if (move.kind == MoveKind::download_squares) downloaded_from_[id] = {};
    if (move.kind == MoveKind::download_gradient)
      downloaded_from_[id] = sources.at({move.use, move.micro_batch, move.unit});
  }
}

// Where the first micro-batches are left out, the pass that would have taken the place is skipped. The download takes
// its part then, and whoever has the place next comes behind it.
Lease Executor::lease_of_sum(MoveKey placed_by, uint64_t offset_bytes, uint64_t bytes) {
  const auto place = placed_.find(placed_by);
  if (place != placed_.end()) return place->second.also(offset_bytes, bytes);
  const uint64_t begin_bytes = parts_.plan.moves[placed_by.second].place_offset_bytes;
  return pass_on(parts_.device->lend(parts_.device->at(Area::device_gradients, begin_bytes + offset_bytes, bytes)));
}

void Executor::begin_download_gradient(Ticket ticket, const Move& move) {
  const auto [placed_by, offset_bytes] = downloaded_from_.at(ticket.move);
  Lease sum = move.kind == MoveKind::download_squares
                  ? pass_on(parts_.device->lend(parts_.device->squares_of(move.unit).first(move.bytes)))
                  : lease_of_sum({ticket.step, placed_by}, offset_bytes, move.bytes);
  const Lease& place = placed_[{ticket.step, ticket.move}] = lend_place(move);
  // Of several ranks the move has its turn, but its bytes have come from elsewhere.
  const CopyRun whole{0, 0, parts_.ranks != nullptr ? 0 : move.bytes};
  put_copy(ticket, {&whole, whole.length_bytes > 0 ? 1u : 0u}, std::move(sum), place.also(),
           [this](Ticket downloaded, Lease) { gradient_downloaded(downloaded); });
}

// The trainer's side takes it in; of a step that has failed or was given up nobody does.
void Executor::gradient_downloaded(Ticket ticket) {
  const Move& move = parts_.plan.moves[ticket.move];
  if (!status_.ok() || open_steps_.at(ticket.step).abandoned) return ended(ticket, Status());
  const Lease& arrived = place_of({ticket.step, ticket.move});
  downloaded_[{ticket.step, ticket.move}] = {ticket, arrived.bytes().first(move.bytes)};
}

// Those before it in its step have arrived, or are skipped. Of what was taken the place is still held.
bool Executor::is_next_downloaded(MoveKey key) const {
  const uint64_t step = key.first;
  if (downloads_over_.first != step) downloads_over_ = {step, 0};
  auto first = downloaded_from_.lower_bound(downloads_over_.second);
  while (first->first < key.second && run_.is_over({step, first->first})) ++first;
  downloads_over_.second = first->first;
  return std::all_of(first, downloaded_from_.lower_bound(key.second), [&](const auto& before) {
    const MoveKey download{step, before.first};
    return run_.is_over({step, before.first}) || (placed_.contains(download) && !on_stream_.contains(download));
  });
}

std::optional<DownloadedSum> Executor::take_downloaded() {
  if (!has_downloaded()) return std::nullopt;
  const DownloadedSum first = downloaded_.begin()->second;
  downloaded_.erase(downloaded_.begin());
  ++downloads_taken_;
  return first;
}

bool Executor::has_ended_downloads_of(const Compute& pass) const {
  auto end = downloaded_from_.lower_bound(pass.move);
  const auto is_of_pass = [&](MoveId id) {
    return parts_.plan.moves[id].use == pass.use && parts_.plan.moves[id].micro_batch == pass.micro_batch;
  };
  while (end != downloaded_from_.end() && is_of_pass(end->first)) ++end;
  return has_ended_downloads_before(end);
}

bool Executor::has_ended_downloads_before(std::map<MoveId, SumPlace>::const_iterator end) const {
  return std::all_of(downloaded_from_.begin(), end, [&](const auto& download) {
    return run_.is_over({step_number(), download.first});
  });
}

void Executor::end_download(Ticket ticket) {
  --downloads_taken_;
  ended(ticket, Status());
}

// -- tiles that rest on the device ------------------------------------------------------------------------------------

void Executor::begin_update_on_device(Ticket ticket, const Move& move) {
  Device& device = parts_.device->device();
  const Stream stream = device.kernel_stream();
  const Status launched = launch_update(ticket, move, stream);
  const Result<Event> done = launched.ok() ? device.record(stream) : Result<Event>(launched);
  if (!done.ok()) return ended(ticket, done.status().within(text("update of tile ", move.tile, " on the device")));
  unwritten_[move.tile].clear();
  put_mark(ticket, *done);
}

// Run by run of equal numbers, as TileUpdater takes them.
Status Executor::launch_update(Ticket ticket, const Move& move, Stream stream) {
  Device& device = parts_.device->device();
  for (const Event& event : events_before(ticket)) PENSTOCK_TRY(device.make_wait(stream, event));
  const StateForm& form = parts_.workload.form;
  const Tile& tile = parts_.plan.tiles[move.tile];
  const TileLayout layout(form, tile.elements);
  Lease weight = parts_.device->lend(parts_.device->weight_of(move.tile));
  Lease state = parts_.device->lend(parts_.device->state_of(move.tile));
  Lease gradient = parts_.device->lend(parts_.device->gradient_of(move.unit).subspan(
      tile.first_element * bytes_of(form.gradient), tile.elements * bytes_of(form.gradient)));
  const uint64_t begins = first_numbered(tile);
  uint64_t first = 0;
  for (const NumbersRun& run : open_steps_.at(ticket.step).numbers(move.unit)) {
    if (run.end_element <= begins + first) continue;
    const uint64_t end = std::min(run.end_element - begins, tile.elements);
    if (!run.untouched) {
      kernel::UpdateTile update;
      update.form = form;
      update.numbers = run.numbers;
      update.weight = weight.data() + first * bytes_of(form.weight);
      update.gradient = gradient.data() + first * bytes_of(form.gradient);
      for (size_t i = 0; i < layout.places.size(); ++i) {
        const TileLayout::Place& place = layout.places[i];
        update.planes[i] = state.data() + place.offset_bytes + place.plane.bytes(first);
      }
      update.elements = end - first;
      update.first_element = begins + first;
      PENSTOCK_TRY(device.launch(update, stream));
    }
    first = end;
    if (first == tile.elements) break;
  }
  for (Lease* const touched : {&weight, &state, &gradient}) keep_until_end(ticket, std::move(*touched));
  return Status();
}

void Executor::begin_download_state(Ticket ticket, const Move& move) {
  // Its last update may have been in an earlier step, and written then.
  if (!unwritten_.contains(move.tile)) return ended(ticket, Status());
  std::optional<Lease> window = parts_.memory.windows().try_lease();
  CHECK(window.has_value(), "the plan counted a window that the pool does not have");
  keep_until_end(ticket, parts_.device->share(parts_.device->weight_of(move.tile)));
  if (parts_.device->holds_state(move.tile)) {
    keep_until_end(ticket, parts_.device->share(parts_.device->state_of(move.tile)));
  }
  put_copy(ticket, parts_.device->runs_of(move.tile, DeviceMemory::Way::out), parts_.device->lend_all(),
           std::move(*window),
           [this](Ticket downloaded, Lease arrived) { state_downloaded(downloaded, std::move(arrived)); });
}

// No kernel has taken its checksums.
void Executor::state_downloaded(Ticket ticket, Lease window) {
  in_use_there_.erase({ticket.step, ticket.move});
  const TileId tile = parts_.plan.moves[ticket.move].tile;
  TileWork& tile_work = work(ticket, tile);
  tile_work.window = std::move(window);
  auto sums = std::make_shared<std::vector<uint64_t>>();
  parts_.workers.enqueue_pieces(
      1, 1,
      [sums, &shape = parts_.store.shape(), tile, bytes = tile_work.window.data()](uint64_t, uint64_t) {
        *sums = checksums_of(shape, tile, bytes);
      },
      [this, ticket, tile, sums] {
        parts_.mailbox.post([this, ticket, tile, sums] {
          work(ticket, tile).checksums = std::move(*sums);
          ended(ticket, Status());
        });
      });
}

// -- events -----------------------------------------------------------------------------------------------------------

std::vector<Event> Executor::events_before(Ticket ticket) const {
  std::set<MoveKey> seen;
  std::vector<Event> events;
  std::vector<MoveKey> left = {{ticket.step, ticket.move}};
  auto visit = [&](uint64_t step, MoveId id) {
    const MoveKey key{step, id};
    if (!seen.insert(key).second) return;
    if (const auto found = on_stream_.find(key); found != on_stream_.end()) return events.push_back(found->second);
    const Move& move = parts_.plan.moves[id];
    const bool orders_nothing = move.kind == MoveKind::release || run_.is_skipped({step, id});
    if (orders_nothing && is_on_stream(parts_.plan, move)) left.push_back(key);
  };
  while (!left.empty()) {
    const auto [step, id] = left.back();
    left.pop_back();
    const Move& move = parts_.plan.moves[id];
    for (MoveId before : move.after) visit(step, before);
    if (step == 0 || !run_.is_open(step - 1)) continue;
    for (MoveId before : move.after_previous) visit(step - 1, before);
  }
  return events;
}

size_t Executor::poll_device() {
  if (parts_.device == nullptr) return 0;
  size_t ends = parts_.device->device().poll();
  for (Ticket ticket : std::exchange(marked_, {})) {
    const Result<bool> reached = parts_.device->device().reached(on_stream_.at({ticket.step, ticket.move}));
    if (reached.ok() && !*reached) {
      marked_.push_back(ticket);
      continue;
    }
    stream_ended(ticket, reached.status());
    ++ends;
  }
  return ends;
}

void Executor::stream_ended(Ticket ticket, const Status& status) {
  on_stream_.erase({ticket.step, ticket.move});
  in_use_there_.erase({ticket.step, ticket.move});
  ended(ticket, status);
}

}  // namespace penstock::engine
