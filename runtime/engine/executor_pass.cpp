// The moves of a training pass: weights arrive where they are used, and computing is granted to the trainer.
#include <utility>

#include "runtime/engine/executor.h"
#include "runtime/engine/weight_fetch.h"

namespace penstock::engine {

void Executor::begin_fetch(Ticket ticket, const Move& move) {
  moved_.read_bytes += read_unit(
      {parts_.plan.tiles, parts_.store, parts_.io}, move.unit, parts_.memory.units(), move.place_offset_bytes,
      deadline(ticket), [this, ticket](const Status& status) {
        const Move& of = parts_.plan.moves[ticket.move];
        // From now on it is only read, until the plan releases it.
        if (status.ok()) {
          placed_[{ticket.step, ticket.move}] = parts_.memory.units().share(of.place_offset_bytes, of.place_bytes);
        }
        ended(ticket, status);
      });
}

void Executor::begin_compute(Ticket ticket) {
  Grant& grant = granted_[{ticket.step, ticket.move}];
  if (parts_.device != nullptr) {
    grant.before = events_before(ticket);
    return;
  }
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
  if (parts_.device != nullptr) {
    for (const Compute::Weights& weights : compute.weights) {
      views.push_back(parts_.device->place_of(parts_.plan.moves[weights.brought_by]));
    }
    return views;
  }
  for (const Lease& lease : granted_.at({round(), compute.move}).weights) views.push_back(lease.bytes());
  return views;
}

void Executor::end_compute(MoveId compute, const Event& done) {
  const Ticket ticket{round(), compute};
  granted_.erase({ticket.step, ticket.move});
  if (!done) return ended(ticket, Status());
  on_stream_[{ticket.step, ticket.move}] = done;
  marked_.push_back(ticket);
  if (const Status woken = parts_.device->device().wake_at(done); !woken.ok()) return fail(woken);
  if (status_.ok()) run_.ordered(ticket);
}

}  // namespace penstock::engine
