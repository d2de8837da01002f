#include "runtime/engine/executor.h"

#include <poll.h>

#include <array>
#include <cmath>
#include <utility>

namespace penstock::engine {
namespace {

constexpr std::chrono::microseconds kAwayLeast{20};  // a shorter pause is not worth a sleep

bool on_drives(const Move& move) { return move.lane == Lane::nvme_read || move.lane == Lane::nvme_write; }

// What a move keeps busy: a commit flushes the drives.
Lane lane_kept_busy(const Move& move) { return move.kind == MoveKind::commit ? Lane::nvme_write : move.lane; }

}  // namespace

Executor::Executor(Parts parts)
    : parts_(parts),
      updater_(parts.workload.form),
      run_(parts.plan, [this](Ticket taker) { released(taker); }),
      drives_meter_(parts.plan.lane_room[static_cast<size_t>(Lane::nvme_read)] / 2, parts.load_least_run_s) {
  for (const Compute& compute : parts.plan.computes) computes_[compute.move] = &compute;
  for (MoveId id = 0; id < parts.plan.moves.size(); ++id) {
    const Move& move = parts.plan.moves[id];
    if (move.kind == MoveKind::weights_current) weights_current_[move.unit] = id;
  }
  note_sources_of_downloads();
}

Executor::~Executor() {
  // Leases and files must outlive the requests that hold them. What the trainer has, it has given up.
  in_flight_ -= granted_.size() + downloaded_.size() + downloads_taken_;
  while (in_flight_ > 0) turn(std::chrono::milliseconds(100));
}

size_t Executor::turn(std::chrono::milliseconds timeout) {
  size_t events = parts_.mailbox.run_all() + parts_.io.poll() + poll_device();
  issue();
  for (Ticket ticket : std::exchange(held_back_, {})) begin_write(ticket, parts_.plan.moves[ticket.move]);
  // Hands over what was issued. What has ended by now, and who was answered, may let more be issued: no sleep before.
  events += parts_.io.poll() + answer_waiters();
  if (events == 0) sleep(timeout);
  lane_times_.pass();
  return events;
}

// Messages and the device always wake; the drives only when they are about to need more.
void Executor::sleep(std::chrono::milliseconds timeout) {
  const int device = parts_.device != nullptr ? parts_.device->device().completion_fd() : -1;  // poll() passes over it
  std::array<pollfd, 3> sources{pollfd{parts_.mailbox.descriptor(), POLLIN, 0}, pollfd{device, POLLIN, 0},
                                pollfd{parts_.io_descriptor, POLLIN, 0}};
  const std::chrono::nanoseconds away = parts_.io.poll_pause();
  if (away >= kAwayLeast) {
    const timespec until{0, away.count()};
    ::ppoll(sources.data(), sources.size() - 1, &until, nullptr);
  } else {
    ::poll(sources.data(), sources.size(), static_cast<int>(timeout.count()));
  }
}

void Executor::begin(StepSetup setup) {
  uint64_t number = setup.number;
  forget_closed_steps();
  run_.begin(number, setup.choices);
  open_steps_[number].setup = std::move(setup);
  next_number_ = number + 1;
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

std::optional<Lease> Executor::try_take_gradient(TileId tile) {
  if (!run_.gradient_is_due(step_number(), tile) || !run_.try_take_gradient(step_number(), tile)) return std::nullopt;
  std::optional<Lease> lease = parts_.memory.gradients().try_lease();
  CHECK(lease.has_value(), "the plan counted a place for a gradient that the pool does not have");
  return lease;
}

void Executor::gradient_complete(TileId tile, Lease gradient, std::span<const double> squares) {
  if (!status_.ok()) return;
  OpenStep& now = open_steps_.rbegin()->second;
  for (double sum : squares) now.squares += sum;
  work_[{step_number(), tile}].gradient = std::move(gradient);
  run_.gradient_complete(step_number(), tile);
  bool overflows = now.setup.skips_overflow && !std::isfinite(now.squares);
  bool strikes = now.setup.certain_strike > 0 && now.squares > now.setup.certain_strike;
  if (parts_.plan.clipping && (overflows || strikes)) run_.stop_speculating(step_number());
}

void Executor::gradient_on_device(TileId tile, std::span<const double> squares) {
  if (!status_.ok()) return;
  const bool taken = run_.gradient_is_due(step_number(), tile) && run_.try_take_gradient(step_number(), tile);
  CHECK(taken, "the gradient of tile ", tile, " is complete before its sums of squares have come down");
  gradient_complete(tile, Lease(), squares);
}

void Executor::give_verdict(Verdict verdict, double clip_factor, RootPayload payload) {
  if (!status_.ok()) return;
  OpenStep& now = open_steps_.rbegin()->second;
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
  run_.give_verdict(step_number(), verdict);
}

void Executor::abandon(const Event& done) {
  parts_.store.discard();
  open_steps_.rbegin()->second.abandoned = true;
  run_.abandon(step_number());
  while (!granted_.empty()) end_compute(granted_.begin()->first.second, done);
  for (const auto& [key, downloaded] : std::exchange(downloaded_, {})) ended(downloaded.ticket, Status());
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
  lane_times_.begin({ticket.step, ticket.move}, lane_kept_busy(move));
  if (on_drives(move)) drives_meter_.begin(run_.bytes_of(ticket));
  if (is_on_device(move.area)) placed_[{ticket.step, ticket.move}] = parts_.device->lend_place(move);
  switch (move.kind) {
    case MoveKind::fetch_weight:
      return begin_fetch(ticket, move);
    case MoveKind::upload_weight:
      return begin_upload_weight(ticket, move);
    case MoveKind::dequantise_weight:
      return parts_.device != nullptr ? begin_dequantise_on_device(ticket, move) : begin_dequantise(ticket, move);
    case MoveKind::forward:
    case MoveKind::backward:
      return begin_compute(ticket);
    case MoveKind::download_activation:
      return begin_download_activation(ticket, move);
    case MoveKind::spill_activation:
      return begin_spill_activation(ticket, move);
    case MoveKind::fetch_activation:
      return begin_fetch_activation(ticket, move);
    case MoveKind::upload_activation:
      return begin_upload_activation(ticket, move);
    case MoveKind::download_gradient:
    case MoveKind::download_squares:
      return begin_download_gradient(ticket, move);
    case MoveKind::download_state:
      return begin_download_state(ticket, move);
    case MoveKind::read_state:
    case MoveKind::reread_state:
      return begin_read(ticket, move);
    case MoveKind::update:
      if (parts_.plan.placements[move.tile].state_on_device()) return begin_update_on_device(ticket, move);
      return begin_update(ticket, move);
    case MoveKind::update_again:
      return begin_update(ticket, move);
    case MoveKind::write_state:
    case MoveKind::write_state_again:
      return begin_write(ticket, move);
    case MoveKind::spill_gradient:
      return begin_spill(ticket, move);
    case MoveKind::fetch_gradient:
    case MoveKind::fetch_gradient_again:
      return begin_fetch_gradient(ticket, move);
    case MoveKind::commit:
      return begin_commit(ticket);
    default:
      CHECK(false, "this executor does not carry out ", name_of(move.kind));
  }
}

bool Executor::is_on_device(Area area) const {
  if (parts_.device == nullptr) return false;
  if (area == Area::activations) return parts_.plan.stores_activations;  // else they are the trainer's
  return area == Area::device_units || area == Area::device_gradients;
}

void Executor::begin_commit(Ticket ticket) {
  parts_.store.commit(open_steps_.at(ticket.step).payload, [this, ticket](Status status) {
    if (status.ok() && parts_.on_durable) parts_.on_durable(parts_.store.payload().step);
    ended(ticket, status);
  });
}

void Executor::ended(Ticket ticket, const Status& status, bool moved) {
  --in_flight_;
  const Move& move = parts_.plan.moves[ticket.move];
  if (on_drives(move)) drives_meter_.end(move.lane == Lane::nvme_read, run_.bytes_of(ticket), moved);
  lane_times_.end({ticket.step, ticket.move});
  if (!status.ok()) return fail(status);
  if (status_.ok()) run_.ended(ticket);
}

void Executor::released(Ticket taker) {
  const Move& move = parts_.plan.moves[taker.move];
  if (move.area != Area::none) {
    auto place = placed_.extract({taker.step, taker.move});
    if (is_on_device(move.area) && !place.empty()) parts_.device->pass_on(std::move(place.mapped()));
    return;
  }
  auto found = work_.find({taker.step, move.tile});
  if (found == work_.end()) return;
  if (move.takes == Pool::window) {
    give_back_read_slot(found->second);  // of a tile that was not updated after all
    found->second.window = Lease();
  }
  if (move.takes == Pool::gradient) found->second.gradient = Lease();
  if (move.takes == Pool::fetched_gradient) found->second.fetched_gradient = Lease();
}

void Executor::fail(const Status& status) {
  if (!status_.ok()) return;
  status_ = Status(status.code(), text(status.message(), "; ", parts_.store.committed_text()), status.remedy());
}

void Executor::forget_closed_steps() {
  std::erase_if(work_, [this](const auto& entry) { return !run_.is_open(entry.first.first); });
  std::erase_if(open_steps_, [this](const auto& entry) { return !run_.is_open(entry.first); });
}

}  // namespace penstock::engine
