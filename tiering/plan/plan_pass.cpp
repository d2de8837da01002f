#include "tiering/plan/plan_pass.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tiering/plan/plan_moves.h"

namespace penstock {

PassMoves::PassMoves(const Workload& workload, const PlanSizes& sizes, bool has_device, Plan& plan, UpdateMoves& update)
    : workload_(workload),
      sizes_(sizes),
      has_device_(has_device),
      plan_(plan),
      update_(update),
      activations_(workload.units.size(), std::vector<Held>(workload.micro_batches)),
      last_use_(workload.micro_batches, kNoMove),
      handed_over_(workload.units.size()) {}

PassMoves::Held PassMoves::fetch(uint32_t unit, bool first_of_step) {
  uint64_t from_nvme = 0, whole = 0;
  for (uint32_t part : parts_of(unit)) {
    for (uint32_t tile = plan_.tiles.first_of(part); tile < plan_.tiles.first_of(part + 1); ++tile) {
      whole += plan_.tiles[tile].weight_bytes;
      if (plan_.placements[tile].weight == Tier::nvme) from_nvme += plan_.tiles[tile].weight_bytes;
    }
  }
  Held held;
  if (from_nvme > 0) {
    held.host = add(plan_, {.kind = MoveKind::fetch_weight,
                            .lane = Lane::nvme_read,
                            .takes = Pool::unit_host,
                            .unit = unit,
                            .bytes = from_nvme,
                            .taken = from_nvme});
  }
  held.ready = held.host;
  if (has_device_) {
    held.device = add(plan_, {.kind = MoveKind::lift_weight,
                              .lane = Lane::host_to_device,
                              .takes = Pool::unit_device,
                              .unit = unit,
                              .bytes = whole,
                              .taken = whole * std::max(1u, workload_.ranks),
                              .after = {held.host}});
    held.ready = held.device;
  }
  if (workload_.ranks > 1) {
    held.ready = add(plan_, {.kind = MoveKind::gather,
                             .lane = Lane::collective,
                             .unit = unit,
                             .bytes = whole * (workload_.ranks - 1),
                             .after = {held.ready}});
  }
  if (first_of_step) {
    for (uint32_t part : parts_of(unit)) {
      first_uses_.push_back({part, held.host != kNoMove ? held.host : held.ready});
    }
  }
  return held;
}

std::vector<uint32_t> PassMoves::parts_of(uint32_t unit) const {
  const std::optional<uint32_t> other = workload_.units[unit].also_uses;
  return other ? std::vector<uint32_t>{unit, *other} : std::vector<uint32_t>{unit};
}

uint64_t PassMoves::activation_bytes(const Unit& unit) const {
  return recomputes(sizes_.activations) ? unit.boundary_bytes : unit.activation_bytes;
}

void PassMoves::add_all() {
  // Group by group, so that only one group's activations are held at a time.
  for (uint32_t first = 0; first < workload_.micro_batches; first += sizes_.micro_batch_group) {
    const uint32_t end = std::min(first + sizes_.micro_batch_group, workload_.micro_batches);
    forward(first, end);
    backward(first, end);
  }
}

void PassMoves::forward(uint32_t first, uint32_t end) {
  // All pass through a unit before the next is fetched.
  for (uint32_t u = 0; u < workload_.units.size(); ++u) {
    Held held = fetch(u, first == 0);
    MoveId use = kNoMove;
    for (uint32_t mb = first; mb < end; ++mb) use = forward_use(u, mb, held, use);
    if (held.device != kNoMove) release(plan_, held.device, {use});
    if (held.host != kNoMove) release(plan_, held.host, {held.device != kNoMove ? held.device : use});
  }
}

MoveId PassMoves::forward_use(uint32_t u, uint32_t mb, const Held& held, MoveId before) {
  const Unit& unit = workload_.units[u];
  uint64_t kept = activation_bytes(unit);
  MoveId use = add(plan_, {.kind = MoveKind::forward,
                           .lane = Lane::compute,
                           .takes = kept > 0 ? Pool::activation_device : Pool::none,
                           .unit = u,
                           .micro_batch = mb,
                           .taken = kept,
                           .seconds = unit.forward_s,
                           .after = {held.ready, last_use_[mb], before}});
  last_use_[mb] = use;
  if (kept > 0) activations_[u][mb].device = use;
  if (kept > 0 && offloads(sizes_.activations)) {
    activations_[u][mb].host = add(plan_, {.kind = MoveKind::offload_activation,
                                           .lane = Lane::device_to_host,
                                           .takes = Pool::activation_host,
                                           .unit = u,
                                           .micro_batch = mb,
                                           .bytes = kept,
                                           .taken = kept,
                                           .after = {use}});
    release(plan_, use, {activations_[u][mb].host});
  }
  return use;
}

void PassMoves::backward(uint32_t first, uint32_t end) {
  // A unit's gradient is complete after its last group.
  const bool last_group = end == workload_.micro_batches;
  for (uint32_t u = static_cast<uint32_t>(workload_.units.size()); u-- > 0;) {
    Held held = fetch(u, false);
    MoveId use = kNoMove;
    for (uint32_t mb = first; mb < end; ++mb) use = backward_use(u, mb, held, use);
    if (held.device != kNoMove) release(plan_, held.device, {use});
    std::vector<MoveId> until = {held.device != kNoMove ? held.device : use};
    for (uint32_t part : parts_of(u)) {
      if (workload_.units[part].trainable) handed_over_[part].push_back(hand_over(part, use));
    }
    if (workload_.units[u].trainable && last_group) complete(u, held, until);
    if (held.host != kNoMove) release(plan_, held.host, until);
  }
}

MoveId PassMoves::backward_use(uint32_t u, uint32_t mb, const Held& held, MoveId before) {
  const Unit& unit = workload_.units[u];
  Held& activation = activations_[u][mb];
  MoveId here = activation.device;
  if (activation.host != kNoMove) {
    uint64_t kept = activation_bytes(unit);
    here = add(plan_, {.kind = MoveKind::return_activation,
                       .lane = Lane::host_to_device,
                       .takes = Pool::activation_device,
                       .unit = u,
                       .micro_batch = mb,
                       .bytes = kept,
                       .taken = kept,
                       .after = {activation.host}});
  }
  MoveId& last = last_use_[mb];
  last = add(plan_, {.kind = MoveKind::backward,
                     .lane = Lane::compute,
                     .unit = u,
                     .micro_batch = mb,
                     .seconds = unit.backward_s + (recomputes(sizes_.activations) ? unit.forward_s : 0),
                     .after = {held.ready, here, last, before}});
  if (here != kNoMove) release(plan_, here, {last});
  if (activation.host != kNoMove) release(plan_, activation.host, {here});
  return last;
}

MoveId PassMoves::hand_over(uint32_t u, MoveId use) {
  uint64_t bytes = workload_.units[u].elements * bytes_of(workload_.form.gradient);
  MoveId here = use;
  if (workload_.ranks > 1) {
    here = add(plan_, {.kind = MoveKind::reduce,
                       .lane = Lane::collective,
                       .unit = u,
                       .bytes = bytes * (workload_.ranks - 1),
                       .after = {here}});
  }
  if (has_device_) {
    here = add(
        plan_,
        {.kind = MoveKind::lower_gradient, .lane = Lane::device_to_host, .unit = u, .bytes = bytes, .after = {here}});
  }
  return here;
}

void PassMoves::complete(uint32_t u, const Held& held, std::vector<MoveId>& until) {
  // A deferred update would hold backward's copy until the verdict, of every unit at once; so with clipping the
  // update reads the weight again.
  MoveId copy = plan_.clipping ? kNoMove : held.host;
  for (uint32_t tile = plan_.tiles.first_of(u); tile < plan_.tiles.first_of(u + 1); ++tile) {
    bool from_copy = copy != kNoMove && plan_.placements[tile].weight == Tier::nvme;
    update_.add_tile(tile, handed_over_[u], from_copy ? copy : kNoMove);
    if (from_copy) until.push_back(plan_.of_tile[tile].update);
  }
}

void PassMoves::tie_forward_to_updates() {
  for (const auto& [unit, use] : first_uses_) {
    if (use == kNoMove) continue;
    for (uint32_t tile = plan_.tiles.first_of(unit); tile < plan_.tiles.first_of(unit + 1); ++tile) {
      const Plan::TileMoves& moves = plan_.of_tile[tile];
      bool on_nvme = plan_.placements[tile].weight == Tier::nvme;
      for (MoveId id : on_nvme ? std::vector<MoveId>{moves.write, moves.write_again}
                               : std::vector<MoveId>{moves.update, moves.update_again}) {
        if (id != kNoMove) plan_.moves[use].after_previous.push_back(id);
      }
    }
  }
}

}  // namespace penstock
