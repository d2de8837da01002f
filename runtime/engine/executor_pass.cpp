// The moves of a training pass: weights arrive where they are used, computing is granted to the trainer, and what
// backward needs of forward leaves for the drives and comes back.
#include <algorithm>
#include <utility>

#include "runtime/engine/coded_weights.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/weight_fetch.h"

namespace penstock::engine {

void Executor::begin_fetch(Ticket ticket, const Move& move) {
  drive_bytes_.found_bytes += move.bytes - run_.bytes_of(ticket);
  drive_bytes_.read_bytes += read_unit(
      {parts_.plan.tiles, parts_.store, parts_.io, parts_.workers, parts_.mailbox.poster()}, move.unit,
      parts_.memory.units(), move.place_offset_bytes, deadline(ticket),
      [this, ticket](const Status& status) {
        // From now on it is only read, until the plan releases it.
        if (status.ok()) placed_[{ticket.step, ticket.move}] = share_place(parts_.plan.moves[ticket.move]);
        ended(ticket, status);
      },
      [this, ticket](TileId tile) { return run_.finds_weight(ticket, tile); });
}

void Executor::begin_dequantise(Ticket ticket, const Move& move) {
  Lease codes =
      move.source == kNoMove ? parts_.memory.share_unit(move.unit) : share_place(parts_.plan.moves[move.source]);
  dequantise_by(parts_.workers, CodedUnit(parts_.workload, parts_.plan.tiles, move.unit), std::move(codes),
                lend_place(move), parts_.mailbox.poster(), [this, ticket] {
                  // From now on it is only read, until the plan releases it.
                  placed_[{ticket.step, ticket.move}] = share_place(parts_.plan.moves[ticket.move]);
                  ended(ticket, Status());
                });
}

const Lease& Executor::place_of(MoveKey move) const {
  const auto found = placed_.find(move);
  CHECK(found != placed_.end(), "move ", move.second, " of step ", move.first, " uses a place that nobody has lent it");
  return found->second;
}

BufferArea& Executor::area_of(Area area) {
  switch (area) {
    case Area::host_units:
      return parts_.memory.units();
    case Area::downloaded_gradients:
      return parts_.memory.downloaded_gradients();
    case Area::offloaded_activations:
      return parts_.memory.offloaded();
    default:
      CHECK(area == Area::activations && parts_.device == nullptr, name_of(area), " is not in host memory");
      return parts_.memory.activations();
  }
}

void Executor::begin_compute(Ticket ticket) {
  Grant& grant = granted_[{ticket.step, ticket.move}];
  if (parts_.device != nullptr) {
    grant.before = events_before(ticket);
    lend_resting(*computes_.at(ticket.move), grant);
    return;
  }
  for (const Compute::Weights& weights : computes_.at(ticket.move)->weights) {
    if (weights.brought_by == kNoMove) {
      grant.weights.push_back(parts_.memory.share_unit(weights.unit));
    } else {
      grant.weights.push_back(share_place(parts_.plan.moves[weights.brought_by]));
    }
  }
  const Compute& compute = *computes_.at(ticket.move);
  if (compute.activation == kNoMove || !parts_.plan.stores_activations) return;
  const Move& place = parts_.plan.moves[compute.activation];
  grant.activation = compute.direction == Direction::forward ? lend_place(place) : share_place(place);
}

void Executor::lend_resting(const Compute& compute, Grant& grant) {
  for (const Compute::Weights& weights : compute.weights) {
    if (weights.brought_by != kNoMove) continue;
    grant.resting.push_back(parts_.device->share(parts_.device->weights_of(weights.unit)));
  }
  for (const Compute::Sum& sum : compute.sums) {
    if (!sum.stays) continue;
    grant.resting.push_back(parts_.device->lend(parts_.device->gradient_of(sum.unit)));
    grant.resting.push_back(parts_.device->lend(parts_.device->squares_of(sum.unit)));
  }
}

std::span<std::byte> Executor::activation_of(const Compute& compute) const {
  if (compute.activation == kNoMove || !parts_.plan.stores_activations) return {};
  if (parts_.device != nullptr) return parts_.device->place_of(parts_.plan.moves[compute.activation]);
  return granted_.at({step_number(), compute.move}).activation.bytes();
}

// -- activations on the drives ----------------------------------------------------------------------------------------

void Executor::begin_spill_activation(Ticket ticket, const Move& move) {
  drive_bytes_.written_bytes += move.bytes;
  const std::vector<Extent> extents = parts_.activations.extents(move.place_offset_bytes, move.place_bytes);
  const auto placed = placed_.find({ticket.step, move.source});  // what was downloaded from a device
  Lease source = placed != placed_.end() ? placed->second.also() : share_place(parts_.plan.moves[move.source]);
  parts_.io.write(extents, std::move(source), deadline(ticket)).then([this, ticket](Result<Lease> result) {
    Status status = result.status();
    { const Lease written = result.ok() ? std::move(*result) : Lease(); }
    ended(ticket, status);
  });
}

void Executor::begin_fetch_activation(Ticket ticket, const Move& move) {
  drive_bytes_.read_bytes += move.bytes;
  const Move& spilled = parts_.plan.moves[move.source];
  const std::vector<Extent> extents = parts_.activations.extents(spilled.place_offset_bytes, spilled.place_bytes);
  parts_.io.read(extents, lend_place(move), deadline(ticket)).then([this, ticket](Result<Lease> result) {
    Status status = result.status();
    { const Lease arrived = result.ok() ? std::move(*result) : Lease(); }
    // From now on it is only read, until the plan releases it.
    if (status.ok()) placed_[{ticket.step, ticket.move}] = share_place(parts_.plan.moves[ticket.move]);
    ended(ticket, status);
  });
}

std::vector<std::span<std::byte>> Executor::weights_of(const Compute& compute) const {
  std::vector<std::span<std::byte>> views;
  if (parts_.device != nullptr) {
    for (const Compute::Weights& weights : compute.weights) {
      views.push_back(weights.brought_by == kNoMove ? parts_.device->weights_of(weights.unit)
                                                    : parts_.device->place_of(parts_.plan.moves[weights.brought_by]));
    }
    return views;
  }
  for (const Lease& lease : granted_.at({step_number(), compute.move}).weights) views.push_back(lease.bytes());
  return views;
}

bool Executor::has_weights_of(const Compute& compute) const {
  return std::all_of(compute.weights.begin(), compute.weights.end(), [this](const Compute::Weights& weights) {
    const MoveId brought = weights.brought_by != kNoMove ? weights.brought_by : weights_current_.at(weights.unit);
    return run_.is_over({step_number(), brought});
  });
}

std::vector<std::span<std::byte>> Executor::weights_before(const Compute& compute) const {
  if (parts_.device != nullptr) return weights_of(compute);
  std::vector<std::span<std::byte>> views;
  for (const Compute::Weights& weights : compute.weights) {
    views.push_back(weights.brought_by == kNoMove ? parts_.memory.share_unit(weights.unit).bytes()
                                                  : place_of({step_number(), weights.brought_by}).bytes());
  }
  return views;
}

void Executor::end_compute(MoveId compute, const Event& done) {
  const Ticket ticket{step_number(), compute};
  auto grant = granted_.extract({ticket.step, ticket.move});
  if (!done) {
    grant = {};
    return ended(ticket, Status());
  }
  for (Lease& resting : grant.mapped().resting) keep_until_end(ticket, std::move(resting));
  put_mark(ticket, done);
}

}  // namespace penstock::engine
