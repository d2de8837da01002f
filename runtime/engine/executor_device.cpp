// The moves of a device with memory of its own. Each is put on its stream behind the events of those before it.
#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/engine/coded_weights.h"
#include "runtime/engine/executor.h"

namespace penstock::engine {

void Executor::put_copy(Ticket ticket, Lease source, Lease target, std::function<void(Ticket, Lease)> then) {
  const CopyRun whole{0, 0, std::min(source.size_bytes(), target.size_bytes())};
  Copy copy = parts_.device->device().copy({&whole, 1}, std::move(source), std::move(target), events_before(ticket));
  on_stream_[{ticket.step, ticket.move}] = copy.done;
  run_.ordered(ticket);
  std::move(copy.transfer).then([this, ticket, done = std::move(then)](Result<Lease> result) {
    if (!result.ok()) return stream_ended(ticket, result.status());
    on_stream_.erase({ticket.step, ticket.move});
    done(ticket, std::move(*result));
  });
}

void Executor::begin_lift(Ticket ticket, const Move& move) {
  Lease weights;
  if (move.source == kNoMove) {
    weights = parts_.memory.share_unit(move.unit);
  } else {
    weights = share_place(parts_.plan.moves[move.source]);
  }
  put_copy(ticket, std::move(weights), Lease::over(Tier::device, parts_.device->place_of(move)),
           [this](Ticket lifted, Lease) { ended(lifted, Status()); });
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

// What returns may be on its stream before what leaves has ended: the place is leased until its release, to be written
// and then to be read, and the copies are ordered by their events.
void Executor::begin_offload(Ticket ticket, const Move& move) {
  Lease& place = placed_[{ticket.step, ticket.move}] = lend_place(move);
  put_copy(ticket, Lease::over(Tier::device, parts_.device->place_of(parts_.plan.moves[move.source])),
           Lease::over(Tier::host, place.bytes()), [this](Ticket offloaded, Lease) {
             Lease& written = placed_.at({offloaded.step, offloaded.move});
             written = Lease();
             written = share_place(parts_.plan.moves[offloaded.move]);
             ended(offloaded, Status());
           });
}

void Executor::begin_return_activation(Ticket ticket, const Move& move) {
  const Lease& place = placed_.at({ticket.step, move.source});
  put_copy(ticket, Lease::over(Tier::host, place.bytes()), Lease::over(Tier::device, parts_.device->place_of(move)),
           [this](Ticket returned, Lease) { ended(returned, Status()); });
}

// -- gradients --------------------------------------------------------------------------------------------------------

void Executor::note_sources_of_lowering() {
  std::map<std::array<uint32_t, 3>, uint64_t> sources;
  for (const Compute& compute : parts_.plan.computes) {
    for (const Compute::Sum& sum : compute.sums) {
      sources[{compute.use, compute.micro_batch, sum.unit}] = sum.rounded_offset_bytes.value_or(sum.offset_bytes);
    }
  }
  for (MoveId id = 0; id < parts_.plan.moves.size(); ++id) {
    const Move& move = parts_.plan.moves[id];
    if (move.kind == MoveKind::lower_gradient) lowered_from_[id] = sources.at({move.use, move.micro_batch, move.unit});
  }
}

void Executor::begin_lower(Ticket ticket, const Move& move) {
  const auto sum = parts_.device->at(Area::device_gradients, lowered_from_.at(ticket.move), move.bytes);
  put_copy(ticket, Lease::over(Tier::device, sum), lend_place(move),
           [this](Ticket lowered, Lease arrived) { lowering_arrived(lowered, std::move(arrived)); });
}

// The trainer's side takes it in; of a step that has failed or was given up nobody does.
void Executor::lowering_arrived(Ticket ticket, Lease arrived) {
  const Move& move = parts_.plan.moves[ticket.move];
  if (!status_.ok() || rounds_.at(ticket.step).abandoned) return ended(ticket, Status());
  lowered_[{ticket.step, ticket.move}] = {ticket, arrived.bytes().first(move.bytes)};
  placed_[{ticket.step, ticket.move}] = std::move(arrived);
}

// Those before it in its step have been taken, or are skipped. Of what was taken the place is still held.
bool Executor::is_next_lowered(MoveKey key) const {
  return std::all_of(lowered_from_.begin(), lowered_from_.lower_bound(key.second), [&](const auto& before) {
    return run_.is_over({key.first, before.first}) || placed_.contains({key.first, before.first});
  });
}

std::optional<LoweredSum> Executor::take_lowered() {
  if (!has_lowered()) return std::nullopt;
  const LoweredSum first = lowered_.begin()->second;
  lowered_.erase(lowered_.begin());
  ++lowered_taken_;
  return first;
}

void Executor::end_lowering(Ticket ticket) {
  --lowered_taken_;
  ended(ticket, Status());
}

// -- events -----------------------------------------------------------------------------------------------------------

std::vector<Event> Executor::events_before(Ticket ticket) const {
  std::set<MoveKey> seen;
  std::vector<Event> events;
  collect_events({ticket.step, ticket.move}, seen, events);
  return events;
}

void Executor::collect_events(MoveKey of, std::set<MoveKey>& seen, std::vector<Event>& events) const {
  auto visit = [&](uint64_t step, MoveId id) {
    const MoveKey key{step, id};
    if (!seen.insert(key).second) return;
    if (const auto found = on_stream_.find(key); found != on_stream_.end()) return events.push_back(found->second);
    const Move& move = parts_.plan.moves[id];
    const bool orders_nothing = move.kind == MoveKind::release || run_.is_skipped({step, id});
    if (orders_nothing && is_on_stream(parts_.plan, move)) collect_events(key, seen, events);
  };
  const Move& move = parts_.plan.moves[of.second];
  for (MoveId before : move.after) visit(of.first, before);
  if (of.first == 0 || !run_.is_open(of.first - 1)) return;
  for (MoveId before : move.after_previous) visit(of.first - 1, before);
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
  ended(ticket, status);
}

}  // namespace penstock::engine
