#include "tiering/plan_builder.h"

#include <algorithm>

namespace penstock {

std::vector<uint32_t> update_order(const Workload& workload, const TileMap& tiles) {
  std::vector<uint32_t> order;
  for (uint32_t unit = static_cast<uint32_t>(workload.units.size()); unit-- > 0;) {
    if (!workload.units[unit].trainable) continue;
    for (uint32_t tile = tiles.first_of(unit); tile < tiles.first_of(unit + 1); ++tile) order.push_back(tile);
  }
  return order;
}

std::vector<bool> spread_evenly(uint32_t chosen, uint32_t count) {
  std::vector<bool> is_chosen(count, false);
  for (uint64_t i = 0; i < count; ++i) is_chosen[i] = (i + 1) * chosen / count > i * chosen / count;
  return is_chosen;
}

std::vector<bool> resting_states(const PlanSizes& sizes, uint32_t count) {
  std::vector<bool> resting = spread_evenly(sizes.host_weight_tiles, count);
  std::vector<bool> chosen = spread_evenly(sizes.host_state_tiles, sizes.host_weight_tiles);
  for (uint32_t i = 0, among = 0; i < count; ++i) {
    if (resting[i]) resting[i] = chosen[among++];
  }
  return resting;
}

uint64_t resting_bytes(const std::vector<uint64_t>& bytes, const std::vector<bool>& chosen) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes.size(); ++i) sum += chosen[i] ? bytes[i] : 0;
  return sum;
}

namespace {

class Builder {
 public:
  Builder(const Workload& workload, const MachineProfile& machine, TileMap tiles, const PlanSizes& sizes)
      : workload_(workload),
        sizes_(sizes),
        has_device_(machine.devices > 0 && machine.host_to_device_gbps > 0),
        plan_(std::move(tiles)) {
    plan_.clipping = workload.clipping.on;
    plan_.micro_batch_group = sizes.micro_batch_group;
    plan_.activations = sizes.activations;
    plan_.accumulated_bytes = sizes.accumulated_bytes;
    plan_.of_tile.resize(plan_.tiles.size());
    plan_.placements.resize(plan_.tiles.size());
    order_ = update_order(workload, plan_.tiles);
    place();
    size_pools();
  }

  Plan build() {
    if (workload_.pass == Pass::training) {
      train();
    } else {
      for (uint32_t tile : order_) update_tile(tile, {}, kNoMove);
    }
    finish_update();
    tie_forward_to_updates();
    return std::move(plan_);
  }

 private:
  MoveId add(Move move) {
    // A dependency may be left out by naming kNoMove.
    auto drop_absent = [](std::vector<MoveId>& ids) { std::erase(ids, kNoMove); };
    drop_absent(move.after);
    drop_absent(move.after_previous);
    plan_.moves.push_back(std::move(move));
    return static_cast<MoveId>(plan_.moves.size() - 1);
  }

  MoveId release(MoveId taker, std::vector<MoveId> after) {
    const Move& taken = plan_.moves[taker];
    after.push_back(taker);
    return add({.kind = MoveKind::release,
                .unit = taken.unit,
                .tile = taken.tile,
                .gives_back = taker,
                .after = std::move(after),
                .after_previous = {}});
  }

  // A frozen tile is only ever read; it rests on nvme unless the weights were chosen to rest in host memory.
  void place() {
    const uint32_t count = static_cast<uint32_t>(order_.size());
    std::vector<bool> weight = spread_evenly(sizes_.host_weight_tiles, count);
    std::vector<bool> state = resting_states(sizes_, count);
    std::vector<bool> retained = retained_in_host(state, count);
    for (uint32_t i = 0; i < count; ++i) {
      Placement& placement = plan_.placements[order_[i]];
      placement.weight = weight[i] ? Tier::host : Tier::nvme;
      placement.state = state[i] ? Tier::host : Tier::nvme;
      placement.retained = retained[i] ? Tier::host : Tier::nvme;
    }
  }

  // Tiles that rest in host memory wait for the verdict with their update, so their gradients stay here first.
  std::vector<bool> retained_in_host(const std::vector<bool>& state_in_host, uint32_t count) const {
    uint32_t first = std::min(sizes_.retained_tiles,
                              static_cast<uint32_t>(std::count(state_in_host.begin(), state_in_host.end(), true)));
    uint32_t others = count - static_cast<uint32_t>(std::count(state_in_host.begin(), state_in_host.end(), true));
    std::vector<bool> spread = spread_evenly(sizes_.retained_tiles - first, others);
    std::vector<bool> retained(count, false);
    for (uint32_t i = 0, other = 0; i < count; ++i) {
      if (!state_in_host[i]) retained[i] = spread[other++];
      if (state_in_host[i] && first > 0) retained[i] = first-- > 0;
    }
    return retained;
  }

  void size_pools() {
    auto capacity = [&](Pool pool) -> uint64_t& { return plan_.pool_capacity[static_cast<size_t>(pool)]; };
    capacity(Pool::window) = sizes_.window_tiles;
    capacity(Pool::gradient) = sizes_.backlog_tiles + sizes_.retained_tiles;
    capacity(Pool::returned) = sizes_.returned_tiles;
    capacity(Pool::unit_host) = sizes_.unit_host_bytes;
    capacity(Pool::unit_device) = sizes_.unit_device_bytes;
    capacity(Pool::activation_device) = sizes_.activation_device_bytes;
    capacity(Pool::activation_host) = sizes_.activation_host_bytes;
    plan_.lane_depth.fill(1);
    auto depth = [&](Lane lane) -> uint32_t& { return plan_.lane_depth[static_cast<size_t>(lane)]; };
    depth(Lane::nvme_read) = std::max(1u, sizes_.window_tiles / 3);
    depth(Lane::nvme_write) = std::max(1u, sizes_.window_tiles / 3);
    depth(Lane::update) = 2;
  }

  // The moves of one tile's update. `weight_here`: backward's copy of the weight, if there is one.
  void update_tile(uint32_t tile, std::vector<MoveId> gradient_after, MoveId weight_here) {
    const Tile& shape = plan_.tiles[tile];
    const Placement& placement = plan_.placements[tile];
    Plan::TileMoves& moves = plan_.of_tile[tile];
    const bool state_on_nvme = placement.state == Tier::nvme;
    const bool spilled = plan_.clipping && placement.retained == Tier::nvme;
    const bool weight_in_memory = placement.weight == Tier::host || weight_here != kNoMove;

    moves.gradient = add({.kind = MoveKind::gradient,
                          .takes = Pool::gradient,
                          .unit = shape.unit,
                          .tile = tile,
                          .taken = 1,
                          .after = std::move(gradient_after),
                          .after_previous = {}});
    if (spilled) {
      moves.spill = add({.kind = MoveKind::spill_gradient,
                         .lane = Lane::nvme_write,
                         .unit = shape.unit,
                         .tile = tile,
                         .bytes = shape.gradient_bytes,
                         .after = {moves.gradient},
                         .after_previous = {}});
      moves.return_gradient = add({.kind = MoveKind::return_gradient,
                                   .lane = Lane::nvme_read,
                                   .takes = Pool::returned,
                                   .unit = shape.unit,
                                   .tile = tile,
                                   .bytes = shape.gradient_bytes,
                                   .taken = 1,
                                   .after = {moves.spill},
                                   .after_previous = {}});
    }
    if (state_on_nvme) {
      moves.read = add({.kind = MoveKind::read_state,
                        .lane = Lane::nvme_read,
                        .takes = Pool::window,
                        .unit = shape.unit,
                        .tile = tile,
                        .bytes = weight_in_memory ? shape.state_bytes : shape.slot_bytes(),
                        .taken = 1,
                        .after = {},
                        .after_previous = {}});
    }
    moves.update = add({.kind = MoveKind::update,
                        .lane = Lane::update,
                        .unit = shape.unit,
                        .tile = tile,
                        .bytes = update_bytes(shape),
                        .after = {moves.gradient, moves.read, weight_here},
                        .after_previous = {}});
    moves.write = add({.kind = MoveKind::write_state,
                       .lane = Lane::nvme_write,
                       .unit = shape.unit,
                       .tile = tile,
                       .bytes = shape.slot_bytes(),
                       .after = {moves.update},
                       .after_previous = {}});
    if (moves.read != kNoMove) release(moves.read, {moves.update, moves.write});
    if (moves.return_gradient != kNoMove) release(moves.return_gradient, {moves.update});
    if (spilled) moves.release_gradient = release(moves.gradient, {moves.spill});
    if (!plan_.clipping) moves.release_gradient = release(moves.gradient, {moves.update});
  }

  // What the pass over a tile moves through memory: everything once in, everything but the gradient once out.
  static uint64_t update_bytes(const Tile& tile) { return 2 * tile.slot_bytes() + tile.gradient_bytes; }

  void finish_update() {
    std::vector<MoveId> gradients, writes;
    for (uint32_t tile : order_) {
      gradients.push_back(plan_.of_tile[tile].gradient);
      writes.push_back(plan_.of_tile[tile].write);
    }
    plan_.verdict = add({.kind = MoveKind::verdict, .after = gradients, .after_previous = {}});
    if (plan_.clipping) {
      for (uint32_t tile : order_) redo_tile(tile);
      for (uint32_t tile : order_) writes.push_back(plan_.of_tile[tile].write_again);
    }
    writes.push_back(plan_.verdict);
    plan_.commit = add({.kind = MoveKind::commit, .after = writes, .after_previous = {}});
    // Where this step writes nothing, as after an overflow, its root still names what the step before it writes.
    std::erase(writes, kNoMove);
    std::erase(writes, plan_.verdict);
    plan_.moves[plan_.commit].after_previous = std::move(writes);
    plan_.moves[plan_.commit].after_previous.push_back(plan_.commit);

    for (uint32_t tile : order_) {
      const Plan::TileMoves& moves = plan_.of_tile[tile];
      // A new version is read once it has been written, and overwrites only what no durable root names any more.
      std::vector<MoveId> versions = {moves.write, moves.write_again};
      std::erase(versions, kNoMove);
      for (MoveId id : {moves.read, moves.reread}) {
        if (id != kNoMove) plan_.moves[id].after_previous = versions;
      }
      std::vector<MoveId>& of_update = plan_.moves[moves.update].after_previous;
      of_update.insert(of_update.end(), versions.begin(), versions.end());
      of_update.push_back(moves.update);                               // a tile in host memory is not always written
      if (moves.reread != kNoMove) of_update.push_back(moves.reread);  // nor redone, but its weight may be restored
      plan_.moves[moves.write].after_previous = {plan_.commit};
      if (moves.write_again != kNoMove) plan_.moves[moves.write_again].after_previous = {plan_.commit};
      // A tile in host memory is written also by a step that does not update it.
      if (plan_.placements[tile].state == Tier::host) plan_.moves[moves.write].after_previous.push_back(moves.update);
      if (moves.spill != kNoMove) {  // one place on the drive holds the tile's gradient of every step
        // The spill itself as well: an update that found the gradient here has skipped its return.
        for (MoveId id : {moves.spill, moves.return_gradient, moves.return_again}) {
          if (id != kNoMove) plan_.moves[moves.spill].after_previous.push_back(id);
        }
      }
    }
  }

  // A struck speculative update, once more from the old slot, with the true clip factor.
  void redo_tile(uint32_t tile) {
    const Tile& shape = plan_.tiles[tile];
    Plan::TileMoves& moves = plan_.of_tile[tile];
    if (plan_.placements[tile].state == Tier::nvme) {
      moves.reread = add({.kind = MoveKind::reread_state,
                          .lane = Lane::nvme_read,
                          .takes = Pool::window,
                          .unit = shape.unit,
                          .tile = tile,
                          .bytes = shape.slot_bytes(),
                          .taken = 1,
                          .after = {plan_.verdict, moves.update, moves.write},
                          .after_previous = {}});
      if (moves.spill != kNoMove) {
        moves.return_again = add({.kind = MoveKind::return_gradient_again,
                                  .lane = Lane::nvme_read,
                                  .takes = Pool::returned,
                                  .unit = shape.unit,
                                  .tile = tile,
                                  .bytes = shape.gradient_bytes,
                                  .taken = 1,
                                  .after = {plan_.verdict, moves.spill},
                                  .after_previous = {}});
      }
      moves.update_again = add({.kind = MoveKind::update_again,
                                .lane = Lane::update,
                                .unit = shape.unit,
                                .tile = tile,
                                .bytes = update_bytes(shape),
                                .after = {moves.reread, moves.return_again},
                                .after_previous = {}});
      moves.write_again = add({.kind = MoveKind::write_state_again,
                               .lane = Lane::nvme_write,
                               .unit = shape.unit,
                               .tile = tile,
                               .bytes = shape.slot_bytes(),
                               .after = {moves.update_again},
                               .after_previous = {}});
      release(moves.reread, {moves.update_again, moves.write_again});
      if (moves.return_again != kNoMove) release(moves.return_again, {moves.update_again});
    }
    if (moves.release_gradient == kNoMove) {
      std::vector<MoveId> users = {plan_.verdict, moves.update};
      if (moves.update_again != kNoMove) users.push_back(moves.update_again);
      moves.release_gradient = release(moves.gradient, users);
    }
  }

  // Brings a unit's weights to where it is computed; returns the move after which they may be used and, in `held`,
  // what took memory for them.
  struct Held {
    MoveId host = kNoMove, device = kNoMove, ready = kNoMove;
  };
  Held fetch(uint32_t unit, bool first_of_step) {
    uint64_t from_nvme = 0, whole = 0;
    for (uint32_t part : parts_of(unit)) {
      for (uint32_t tile = plan_.tiles.first_of(part); tile < plan_.tiles.first_of(part + 1); ++tile) {
        whole += plan_.tiles[tile].weight_bytes;
        if (plan_.placements[tile].weight == Tier::nvme) from_nvme += plan_.tiles[tile].weight_bytes;
      }
    }
    Held held;
    if (from_nvme > 0) {
      held.host = add({.kind = MoveKind::fetch_weight,
                       .lane = Lane::nvme_read,
                       .takes = Pool::unit_host,
                       .unit = unit,
                       .bytes = from_nvme,
                       .taken = from_nvme,
                       .after = {},
                       .after_previous = {}});
    }
    held.ready = held.host;
    if (has_device_) {
      held.device = add({.kind = MoveKind::lift_weight,
                         .lane = Lane::host_to_device,
                         .takes = Pool::unit_device,
                         .unit = unit,
                         .bytes = whole,
                         .taken = whole * std::max(1u, workload_.ranks),
                         .after = {held.host},
                         .after_previous = {}});
      held.ready = held.device;
    }
    if (workload_.ranks > 1) {
      held.ready = add({.kind = MoveKind::gather,
                        .lane = Lane::collective,
                        .unit = unit,
                        .bytes = whole * (workload_.ranks - 1),
                        .after = {held.ready},
                        .after_previous = {}});
    }
    if (first_of_step) {
      for (uint32_t part : parts_of(unit)) {
        first_uses_.push_back({part, held.host != kNoMove ? held.host : held.ready});
      }
    }
    return held;
  }

  // The units whose weights a unit is computed with.
  std::vector<uint32_t> parts_of(uint32_t unit) const {
    const std::optional<uint32_t> other = workload_.units[unit].also_uses;
    return other ? std::vector<uint32_t>{unit, *other} : std::vector<uint32_t>{unit};
  }

  uint64_t activation_bytes(const Unit& unit) const {
    return recomputes(sizes_.activations) ? unit.boundary_bytes : unit.activation_bytes;
  }

  // Group by group, so that only one group's activations are held at a time.
  void train() {
    activations_.assign(workload_.units.size(), std::vector<Held>(workload_.micro_batches));
    last_use_.assign(workload_.micro_batches, kNoMove);
    handed_over_.assign(workload_.units.size(), {});
    for (uint32_t first = 0; first < workload_.micro_batches; first += sizes_.micro_batch_group) {
      const uint32_t end = std::min(first + sizes_.micro_batch_group, workload_.micro_batches);
      forward(first, end);
      backward(first, end);
    }
  }

  // Micro-batches [first, end) pass through a unit before the next is fetched.
  void forward(uint32_t first, uint32_t end) {
    for (uint32_t u = 0; u < workload_.units.size(); ++u) {
      Held held = fetch(u, first == 0);
      MoveId use = kNoMove;
      for (uint32_t mb = first; mb < end; ++mb) use = forward_use(u, mb, held);
      if (held.device != kNoMove) release(held.device, {use});
      if (held.host != kNoMove) release(held.host, {held.device != kNoMove ? held.device : use});
    }
  }

  MoveId forward_use(uint32_t u, uint32_t mb, const Held& held) {
    const Unit& unit = workload_.units[u];
    uint64_t kept = activation_bytes(unit);
    MoveId use = add({.kind = MoveKind::forward,
                      .lane = Lane::compute,
                      .takes = kept > 0 ? Pool::activation_device : Pool::none,
                      .unit = u,
                      .micro_batch = mb,
                      .taken = kept,
                      .seconds = unit.forward_s,
                      .after = {held.ready, last_use_[mb]},
                      .after_previous = {}});
    last_use_[mb] = use;
    if (kept > 0) activations_[u][mb].device = use;
    if (kept > 0 && offloads(sizes_.activations)) {
      activations_[u][mb].host = add({.kind = MoveKind::offload_activation,
                                      .lane = Lane::device_to_host,
                                      .takes = Pool::activation_host,
                                      .unit = u,
                                      .micro_batch = mb,
                                      .bytes = kept,
                                      .taken = kept,
                                      .after = {use},
                                      .after_previous = {}});
      release(use, {activations_[u][mb].host});
    }
    return use;
  }

  void backward(uint32_t first, uint32_t end) {
    // A unit's gradient is complete after its last group.
    const bool last_group = end == workload_.micro_batches;
    for (uint32_t u = static_cast<uint32_t>(workload_.units.size()); u-- > 0;) {
      Held held = fetch(u, false);
      MoveId use = kNoMove;
      for (uint32_t mb = first; mb < end; ++mb) use = backward_use(u, mb, held);
      if (held.device != kNoMove) release(held.device, {use});
      std::vector<MoveId> until = {held.device != kNoMove ? held.device : use};
      if (workload_.units[u].trainable) {
        handed_over_[u].push_back(hand_over(u, use));
        if (last_group) complete(u, held, until);
      }
      if (held.host != kNoMove) release(held.host, until);
    }
  }

  MoveId backward_use(uint32_t u, uint32_t mb, const Held& held) {
    const Unit& unit = workload_.units[u];
    Held& activation = activations_[u][mb];
    MoveId here = activation.device;
    if (activation.host != kNoMove) {
      uint64_t kept = activation_bytes(unit);
      here = add({.kind = MoveKind::return_activation,
                  .lane = Lane::host_to_device,
                  .takes = Pool::activation_device,
                  .unit = u,
                  .micro_batch = mb,
                  .bytes = kept,
                  .taken = kept,
                  .after = {activation.host},
                  .after_previous = {}});
    }
    MoveId& last = last_use_[mb];
    last = add({.kind = MoveKind::backward,
                .lane = Lane::compute,
                .unit = u,
                .micro_batch = mb,
                .seconds = unit.backward_s + (recomputes(sizes_.activations) ? unit.forward_s : 0),
                .after = {held.ready, here, last},
                .after_previous = {}});
    if (here != kNoMove) release(here, {last});
    if (activation.host != kNoMove) release(activation.host, {here});
    return last;
  }

  // One group's gradient of a unit, on its way to where it is added up; returns the move after which it is there.
  MoveId hand_over(uint32_t u, MoveId use) {
    uint64_t bytes = workload_.units[u].elements * bytes_of(workload_.form.gradient);
    MoveId here = use;
    if (workload_.ranks > 1) {
      here = add({.kind = MoveKind::reduce,
                  .lane = Lane::collective,
                  .unit = u,
                  .bytes = bytes * (workload_.ranks - 1),
                  .after = {here},
                  .after_previous = {}});
    }
    if (has_device_) {
      here = add({.kind = MoveKind::lower_gradient,
                  .lane = Lane::device_to_host,
                  .unit = u,
                  .bytes = bytes,
                  .after = {here},
                  .after_previous = {}});
    }
    return here;
  }

  // The gradient of a unit after its last use, and the updates of its tiles.
  void complete(uint32_t u, const Held& held, std::vector<MoveId>& until) {
    // A deferred update would hold backward's copy until the verdict, of every unit at once; so with clipping the
    // update reads the weight again.
    MoveId copy = plan_.clipping ? kNoMove : held.host;
    for (uint32_t tile = plan_.tiles.first_of(u); tile < plan_.tiles.first_of(u + 1); ++tile) {
      bool from_copy = copy != kNoMove && plan_.placements[tile].weight == Tier::nvme;
      update_tile(tile, handed_over_[u], from_copy ? copy : kNoMove);
      if (from_copy) until.push_back(plan_.of_tile[tile].update);
    }
  }

  // forward(u) of the next step waits for update(u), wherever the weight rests.
  void tie_forward_to_updates() {
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

  const Workload& workload_;
  const PlanSizes sizes_;
  const bool has_device_;
  Plan plan_;
  std::vector<uint32_t> order_;
  std::vector<std::vector<Held>> activations_;    // by unit and micro-batch
  std::vector<MoveId> last_use_;                  // by micro-batch: of the pass so far
  std::vector<std::vector<MoveId>> handed_over_;  // by unit: its groups' gradients
  std::vector<std::pair<uint32_t, MoveId>> first_uses_;
};

}  // namespace

Plan build_plan(const Workload& workload, const MachineProfile& machine, TileMap tiles, const PlanSizes& sizes) {
  return Builder(workload, machine, std::move(tiles), sizes).build();
}

}  // namespace penstock
