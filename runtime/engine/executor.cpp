#include "runtime/engine/executor.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "runtime/engine/tile_checksums.h"

namespace penstock::engine {
namespace {

constexpr std::chrono::microseconds kAwayLeast{20};  // less than a sleep costs is none

}  // namespace

Executor::Executor(Parts parts)
    : parts_(parts),
      updater_(parts.form),
      run_(parts.plan, [this](Ticket taker) { released(taker); }),
      accounted_(std::chrono::steady_clock::now()) {}

Executor::~Executor() {
  // Leases and files must outlive the requests that hold them.
  while (in_flight_ > 0) turn(std::chrono::milliseconds(100));
}

void Executor::turn(std::chrono::milliseconds timeout) {
  size_t events = parts_.mailbox.run_all() + parts_.io.poll();
  issue();
  for (Ticket ticket : std::exchange(held_back_, {})) begin_write(ticket, parts_.plan.moves[ticket.move]);
  // Hands over what was issued. What has ended by now, and who was answered, may let more be issued: no sleep before.
  events += parts_.io.poll() + answer_waiters();
  if (events == 0) sleep(timeout);
  account();
}

// Messages always wake; the drives only when they are about to need more.
void Executor::sleep(std::chrono::milliseconds timeout) {
  std::array<pollfd, 2> sources{pollfd{parts_.mailbox.descriptor(), POLLIN, 0},
                                pollfd{parts_.io_descriptor, POLLIN, 0}};
  const std::chrono::nanoseconds away = parts_.io.may_look_away();
  if (away >= kAwayLeast) {
    const timespec until{0, away.count()};
    ::ppoll(sources.data(), 1, &until, nullptr);
  } else {
    ::poll(sources.data(), sources.size(), static_cast<int>(timeout.count()));
  }
}

void Executor::begin(StepSetup setup) {
  uint64_t number = setup.round;
  forget_closed_rounds();
  run_.begin(number, setup.choices);
  rounds_[number].setup = std::move(setup);
  next_round_ = number + 1;
}

void Executor::when(std::function<bool()> ready, std::function<void(Status)> then) {
  waiters_.push_back({std::move(ready), std::move(then)});
}

size_t Executor::answer_waiters() {
  size_t answered = 0;
  for (auto waiter = waiters_.begin(); waiter != waiters_.end();) {
    if (status_.ok() && !waiter->ready()) {
      ++waiter;
      continue;
    }
    auto then = std::move(waiter->then);
    waiter = waiters_.erase(waiter);
    then(status_);
    ++answered;
  }
  return answered;
}

std::byte* Executor::try_take_gradient(uint32_t tile) {
  if (!run_.try_take_gradient(round(), tile)) return nullptr;
  std::optional<Lease> lease = parts_.memory.gradients().try_lease();
  CHECK(lease.has_value(), "the plan counted a place for a gradient that the pool does not have");
  TileWork& tile_work = work_[{round(), tile}];
  tile_work.gradient = std::move(*lease);
  return tile_work.gradient.data();
}

void Executor::gradient_complete(uint32_t tile, std::span<const double> squares) {
  if (!status_.ok()) return;
  Round& now = rounds_.rbegin()->second;
  for (double sum : squares) now.squares += sum;
  run_.gradient_complete(round(), tile);
  bool overflows = now.setup.skips_overflow && !std::isfinite(now.squares);
  bool strikes = now.setup.certain_strike > 0 && now.squares > now.setup.certain_strike;
  if (parts_.plan.clipping && (overflows || strikes)) run_.stop_speculating(round());
}

void Executor::give_verdict(Verdict verdict, double clip_factor, RootPayload payload) {
  if (!status_.ok()) return;
  Round& now = rounds_.rbegin()->second;
  now.verdict = verdict;
  now.payload = last_payload_ = std::move(payload);
  if (verdict == Verdict::strike) {
    now.struck = now.setup.numbers;
    const auto scale = static_cast<float>(now.setup.inverse_loss_scale * clip_factor);
    for (UnitNumbers& unit : now.struck) {
      for (NumbersRun& run : unit) run.numbers.gradient_scale = scale;
    }
  }
  if (verdict == Verdict::confirm) {
    parts_.store.confirm();
  } else {
    parts_.store.discard();
  }
  run_.give_verdict(round(), verdict);
}

void Executor::abandon() {
  parts_.store.discard();
  run_.abandon(round());
}

// -- moves ------------------------------------------------------------------------------------------------------------

void Executor::issue() {
  if (!status_.ok()) return;
  bool issued = true;
  while (issued && status_.ok()) {
    issued = false;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      while (std::optional<Ticket> ticket = run_.next(static_cast<Lane>(lane))) {
        begin_move(*ticket);
        issued = true;
        if (!status_.ok()) return;
      }
    }
  }
}

void Executor::begin_move(Ticket ticket) {
  const Move& move = parts_.plan.moves[ticket.move];
  ++in_flight_;
  under_way_[{ticket.step, ticket.move}] = move.kind == MoveKind::commit ? Lane::nvme_write : move.lane;
  switch (move.kind) {
    case MoveKind::read_state:
    case MoveKind::reread_state:
      return begin_read(ticket, move);
    case MoveKind::update:
    case MoveKind::update_again:
      return begin_update(ticket, move);
    case MoveKind::write_state:
    case MoveKind::write_state_again:
      return begin_write(ticket, move);
    case MoveKind::spill_gradient:
      return begin_spill(ticket, move);
    case MoveKind::return_gradient:
    case MoveKind::return_gradient_again:
      return begin_return(ticket, move);
    case MoveKind::commit:
      return begin_commit(ticket);
    default:
      CHECK(false, "this executor does not carry out ", name_of(move.kind));
  }
}

void Executor::begin_read(Ticket ticket, const Move& move) {
  const Tile& tile = parts_.plan.tiles[move.tile];
  TileWork& tile_work = work(ticket, move.tile);
  std::optional<Lease> window = parts_.memory.windows().try_lease();
  CHECK(window.has_value(), "the plan counted a window that the pool does not have");
  tile_work.window = std::move(*window);
  // A weight that rests in memory is there already, except where a speculative update has changed it.
  bool weight_too = parts_.plan.placements[move.tile].weight == Tier::nvme || move.kind == MoveKind::reread_state;
  aio::TileStore::Range range{0, tile.slot_bytes()};
  if (!weight_too) range = {tile.weight_bytes, tile.state_bytes};
  tile_work.reading = parts_.store.begin_read(move.tile, range, range.offset_bytes);
  CHECK(tile_work.reading.has_value(), "tile ", move.tile, " is read while it is written");
  moved_.read_bytes += range.length_bytes;
  std::vector<Extent> extents = in_arena(tile_work.reading->extents, tile_work, move.tile);
  parts_.io.read(extents, arena_lease(), deadline(ticket)).then([this, ticket](Result<Lease> result) {
    read_ended(ticket, result.status());
  });
}

void Executor::end_reading(TileWork& tile_work) {
  if (!tile_work.reading) return;
  parts_.store.end_read(tile_work.reading->place);
  tile_work.reading.reset();
}

void Executor::read_ended(Ticket ticket, const Status& status) {
  const Move& move = parts_.plan.moves[ticket.move];
  TileWork& tile_work = work(ticket, move.tile);
  Status arrived = status;
  // Checksums are compared by the update, so the slot stays ours until then. None follows where a skipped step takes
  // back the weight that it had changed.
  if (arrived.ok() && move.kind == MoveKind::reread_state && rounds_.at(ticket.step).verdict == Verdict::skip) {
    const aio::TileStore::Range weight{0, parts_.plan.tiles[move.tile].weight_bytes};
    arrived = compare_checksums(parts_.store.shape(), move.tile, weight, weight_of(tile_work, move.tile),
                                tile_work.reading->checksums);
  }
  if (!arrived.ok()) end_reading(tile_work);
  ended(ticket, arrived);
}

void Executor::begin_update(Ticket ticket, const Move& move) {
  const Tile& tile = parts_.plan.tiles[move.tile];
  TileWork& tile_work = work(ticket, move.tile);
  const Lease& gradient = tile_work.returned ? tile_work.returned : tile_work.gradient;
  CHECK(static_cast<bool>(gradient), "tile ", move.tile, " is updated without its gradient");

  TileLayout layout(parts_.form, tile.elements);
  cpu_optim::TileJob job;
  job.updater = &updater_;
  job.tile = cpu_optim::TileView::in_place(layout, state_of(tile_work, move.tile), weight_of(tile_work, move.tile),
                                           gradient.data(), tile.elements, tile.first_element);
  tile_work.checksums.resize(updater_.checksum_count(tile.elements));
  job.notes.checksum_seed = checksum_seed(move.tile, 0);
  job.notes.target_checksums = tile_work.checksums;
  if (tile_work.reading) job.notes.expected_checksums = tile_work.reading->checksums;
  job.numbers = rounds_.at(ticket.step).numbers(move.unit);
  parts_.workers.enqueue(job, [this, ticket](const cpu_optim::TileReport& report) {
    parts_.mailbox.post([this, ticket, report] { update_ended(ticket, report); });
  });
}

void Executor::update_ended(Ticket ticket, const cpu_optim::TileReport& report) {
  const Move& move = parts_.plan.moves[ticket.move];
  TileWork& tile_work = work(ticket, move.tile);
  end_reading(tile_work);
  Status status;
  if (report.checksum_mismatch != cpu_optim::TileReport::kNone) {
    const Tile& tile = parts_.plan.tiles[move.tile];
    TileBlock block = block_of(parts_.store.shape().layout(move.tile), tile.elements, report.checksum_mismatch);
    status = Status(Code::kCorrupt,
                    text("read for update: ", describe_block(parts_.store.shape(), move.tile, block), ": ",
                         block.length_bytes, " B do not have the checksum they were written with"),
                    "run `penstock checkpoint scrub` on the store; resume from the last committed step");
  }
  if (parts_.plan.placements[move.tile].state == Tier::host) unwritten_[move.tile] = tile_work.checksums;
  ended(ticket, status);
}

void Executor::begin_write(Ticket ticket, const Move& move) {
  TileWork& tile_work = work(ticket, move.tile);
  const bool rests_in_host = parts_.plan.placements[move.tile].state == Tier::host;
  if (rests_in_host) {
    // Its last update may have been in an earlier step, and written then.
    auto unwritten = unwritten_.find(move.tile);
    if (unwritten == unwritten_.end()) return ended(ticket, Status());
    tile_work.checksums = unwritten->second;
  }
  const Round& of_round = rounds_.at(ticket.step);
  // Where gradients are clipped, what rests in host memory is updated after the verdict: what is written before it is
  // an earlier step's update, which no verdict of this one takes back.
  const bool of_earlier_step = rests_in_host && parts_.plan.clipping;
  bool speculative = !of_round.verdict && of_round.setup.keeps_confirmed && !of_earlier_step;
  auto begun = parts_.store.begin_write(move.tile, speculative ? Update::speculative : Update::final);
  if (!begun.ok()) return ended(ticket, begun.status());
  const std::optional<aio::TileStore::Writing>& writing = *begun;
  if (!writing) return held_back_.push_back(ticket);
  unwritten_.erase(move.tile);
  moved_.written_bytes += parts_.plan.tiles[move.tile].slot_bytes();
  std::vector<Extent> extents = in_arena(writing->extents, tile_work, move.tile);
  parts_.io.write(extents, arena_lease(), deadline(ticket))
      .then([this, ticket, place = writing->place](Result<Lease> result) {
        write_ended(ticket, place, result.status());
      });
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
  TileWork& tile_work = work(ticket, move.tile);
  Extent place = parts_.spill.place_of(move.tile);
  place.lease_offset_bytes = parts_.memory.offset_of(tile_work.gradient.data());
  moved_.written_bytes += place.length_bytes;
  parts_.io.write({&place, 1}, arena_lease(), deadline(ticket)).then([this, ticket](Result<Lease> result) {
    ended(ticket, result.status());
  });
}

void Executor::begin_return(Ticket ticket, const Move& move) {
  TileWork& tile_work = work(ticket, move.tile);
  std::optional<Lease> lease = parts_.memory.returned().try_lease();
  CHECK(lease.has_value(), "the plan counted a place for a returned gradient that the pool does not have");
  tile_work.returned = std::move(*lease);
  Extent place = parts_.spill.place_of(move.tile);
  place.lease_offset_bytes = parts_.memory.offset_of(tile_work.returned.data());
  moved_.read_bytes += place.length_bytes;
  parts_.io.read({&place, 1}, arena_lease(), deadline(ticket)).then([this, ticket](Result<Lease> result) {
    ended(ticket, result.status());
  });
}

void Executor::begin_commit(Ticket ticket) {
  parts_.store.commit(rounds_.at(ticket.step).payload, [this, ticket](Status status) {
    if (status.ok() && parts_.on_durable) parts_.on_durable(parts_.store.payload().step);
    ended(ticket, status);
  });
}

void Executor::ended(Ticket ticket, const Status& status) {
  --in_flight_;
  account();
  under_way_.erase({ticket.step, ticket.move});
  if (!status.ok()) return fail(status);
  if (status_.ok()) run_.ended(ticket);
}

void Executor::released(Ticket taker) {
  const Move& move = parts_.plan.moves[taker.move];
  auto found = work_.find({taker.step, move.tile});
  if (found == work_.end()) return;
  if (move.takes == Pool::window) {
    end_reading(found->second);  // of a tile that was not updated after all
    found->second.window = Lease();
  }
  if (move.takes == Pool::gradient) found->second.gradient = Lease();
  if (move.takes == Pool::returned) found->second.returned = Lease();
}

void Executor::fail(const Status& status) {
  if (status_.ok()) status_ = status;
}

// -- memory and time --------------------------------------------------------------------------------------------------

std::byte* Executor::weight_of(TileWork& tile_work, uint32_t tile) const {
  std::byte* resting = parts_.memory.resting_weight(tile);
  return resting != nullptr ? resting : tile_work.window.data();
}

std::byte* Executor::state_of(TileWork& tile_work, uint32_t tile) const {
  std::byte* resting = parts_.memory.resting_state(tile);
  return resting != nullptr ? resting : tile_work.window.data() + parts_.plan.tiles[tile].weight_bytes;
}

std::vector<Extent> Executor::in_arena(const std::vector<Extent>& extents, TileWork& tile_work, uint32_t tile) const {
  const uint64_t weight_bytes = parts_.plan.tiles[tile].weight_bytes;
  const uint64_t weight = parts_.memory.offset_of(weight_of(tile_work, tile));
  const uint64_t state = parts_.memory.offset_of(state_of(tile_work, tile));
  std::vector<Extent> placed;
  for (Extent rest : extents) {
    // Weight and state may be neighbours on the drive and strangers in memory.
    while (rest.length_bytes > 0) {
      const uint64_t at = rest.lease_offset_bytes;
      Extent part = rest;
      if (at < weight_bytes) part.length_bytes = std::min(rest.length_bytes, weight_bytes - at);
      part.lease_offset_bytes = at < weight_bytes ? weight + at : state + (at - weight_bytes);
      placed.push_back(part);
      rest.offset_bytes += part.length_bytes;
      rest.lease_offset_bytes += part.length_bytes;
      rest.length_bytes -= part.length_bytes;
    }
  }
  return placed;
}

void Executor::forget_closed_rounds() {
  std::erase_if(work_, [this](const auto& entry) { return !run_.is_open(entry.first.first); });
  std::erase_if(rounds_, [this](const auto& entry) { return !run_.is_open(entry.first); });
}

void Executor::account() {
  auto now = std::chrono::steady_clock::now();
  Lane lane = under_way_.empty() ? Lane::none : under_way_.begin()->second;
  waited_s_[static_cast<size_t>(lane)] += std::chrono::duration<double>(now - accounted_).count();
  accounted_ = now;
}

}  // namespace penstock::engine
