#include "tiering/plan/plan_pass.h"

#include <algorithm>
#include <utility>

#include "tiering/plan/plan_moves.h"

namespace penstock {

PassMoves::PassMoves(const Workload& workload, const PlanSizes& sizes, Plan& plan, UpdateMoves& update)
    : workload_(workload),
      sizes_(sizes),
      has_device_(plan.on_device),
      first_trained_use_(first_trained_use(workload)),
      plan_(plan),
      update_(update),
      host_units_(Area::host_units, 0, sizes.host_units_bytes),
      device_units_(workload, plan.tiles, plan.on_device, sizes.device_units_bytes),
      device_gradients_(Area::device_gradients, 0, sizes.device_gradients_bytes),
      downloaded_(Area::downloaded_gradients, 0, sizes.downloaded_bytes),
      keeping_(Area::activations, 0, sizes.kept_bytes),
      moving_(Area::activations, sizes.kept_bytes, sizes.moving_bytes),
      offloaded_(Area::offloaded_activations, 0, sizes.offloaded_bytes),
      passing_(Area::offloaded_activations, sizes.offloaded_bytes, sizes.passing_bytes),
      spilled_(Area::spilled_activations, 0, sizes.spilled_bytes),
      kept_(workload.uses.size(), std::vector<Kept>(workload.micro_batches)),
      handed_over_(workload.units.size()),
      current_(workload.units.size(), kNoMove),
      deferred_(deferred_tiles(workload, plan.tiles, plan.placements, sizes.deferred_share)),
      completed_by_(workload.units.size()),
      is_gathered_(workload.units.size()) {
  uint64_t kept = 0, offloaded = 0, spilled = 0;
  for (uint32_t use = 0; use < workload.uses.size(); ++use) {
    uint64_t& at = !offloads(sizes.activations[use]) ? kept : sizes.spills_activations[use] ? spilled : offloaded;
    activation_offset_bytes_.push_back(at);
    at += activation_bytes(use) * sizes.micro_batch_group;
  }
}

void PassMoves::give_back(AreaCutter& area, MoveId taker, std::vector<MoveId> after) {
  area.give_back(taker, release(plan_, taker, std::move(after)));
}

uint64_t PassMoves::activation_bytes(uint32_t use) const {
  // Backward does not come back to what lies before all that is trained.
  return use < first_trained_use_ ? 0 : activation_place_bytes(workload_.uses[use], sizes_.activations[use]);
}

// -- weights ----------------------------------------------------------------------------------------------------------

std::vector<PassMoves::Held> PassMoves::fetch(uint32_t use, uint32_t last) {
  // Side by side, because they are used together.
  uint64_t of_host = 0, of_device = 0;
  for (uint32_t unit : workload_.uses[use].units) {
    if (plan_.rests_on_device(unit) || device_units_.kept(unit)) continue;
    const WeightBytes bytes = weight_bytes(workload_, plan_.tiles, unit);
    if (rests_on_nvme(unit)) of_host += bytes.at_rest;
    if (has_device_) {
      of_device += (bytes.at_rest + bytes.dequantised) * ranks();
    } else {
      of_host += bytes.dequantised;
    }
  }
  host_units_.reserve(of_host);
  device_units_.reserve(of_device);
  computed_before_last_fetch_ = std::exchange(computed_before_fetch_, last_compute_);
  std::vector<Held> weights;
  for (uint32_t unit : workload_.uses[use].units) {
    if (const auto& kept = device_units_.kept(unit)) {
      weights.push_back({.device = kept->taker, .ready = kept->ready});
      continue;
    }
    weights.push_back(fetch_unit(unit, use, last));
    device_units_.brought(unit, {weights.back().device, weights.back().ready});
    is_gathered_[unit] = workload_.keeps_weights;
  }
  return weights;
}

bool PassMoves::rests_on_nvme(uint32_t unit) const {
  return plan_.placements[plan_.tiles.first_of(unit)].weight_on_drives();
}

PassMoves::Held PassMoves::fetch_unit(uint32_t unit, uint32_t use, uint32_t last) {
  if (current_[unit] == kNoMove) current_[unit] = add(plan_, {.kind = MoveKind::weights_current, .unit = unit});
  if (plan_.rests_on_device(unit)) return {.ready = current_[unit]};
  const auto [bytes, dequantised] = weight_bytes(workload_, plan_.tiles, unit);
  auto move_of = [&](MoveKind kind, Lane lane, uint64_t moved, MoveId after) {
    return Move{
        .kind = kind, .lane = lane, .unit = unit, .use = use, .micro_batch = last, .bytes = moved, .after = {after}};
  };
  Held held{.ready = current_[unit]};
  if (rests_on_nvme(unit)) {
    Move move = move_of(MoveKind::fetch_weight, Lane::nvme_read, bytes, held.ready);
    host_units_.cut(plan_, move, bytes);
    held.host = held.ready = add(plan_, std::move(move));
  }
  if (has_device_) {
    Move move = move_of(MoveKind::upload_weight, Lane::host_to_device, bytes, held.ready);
    move.source = held.host;
    device_units_.cut(plan_, move, unit, bytes * ranks());
    held.device = held.ready = add(plan_, std::move(move));
  }
  if (ranks() > 1 && !is_gathered_[unit]) {
    held.ready = gather(move_of(MoveKind::gather, Lane::collective, 0, held.ready));
  }
  if (dequantised > 0) {
    // On a device the link's lane only says when: no bytes pass over the link.
    Move move = move_of(MoveKind::dequantise_weight, has_device_ ? Lane::host_to_device : Lane::update,
                        has_device_ ? 0 : bytes + dequantised, held.ready);
    dequantise(unit, std::move(move), dequantised, held);
  }
  return held;
}

MoveId PassMoves::gather(const Move& like) {
  Move move = like;
  const CollectiveBytes bytes = gathered_unit_bytes(workload_, plan_.tiles, like.unit);
  move.bytes = bytes.all;
  move.network_bytes = bytes.network;
  if (!has_device_ && !workload_.keeps_weights) move.after.push_back(computed_before_last_fetch_);
  return add(plan_, std::move(move));
}

void PassMoves::dequantise(uint32_t unit, Move move, uint64_t bytes, Held& held) {
  CHECK(workload_.units[unit].code.has_value(), "unit ", unit, " has no codes");
  AreaCutter& area = has_device_ ? device_units_.area() : host_units_;
  const MoveId codes = has_device_ ? held.device : held.host;
  move.source = codes;
  area.cut(plan_, move, has_device_ ? bytes * ranks() : bytes);
  held.ready = add(plan_, std::move(move));
  if (has_device_ && held.host != kNoMove) give_back(host_units_, held.host, {held.device});
  if (codes != kNoMove) give_back(area, codes, {held.ready});
  held.host = has_device_ ? kNoMove : held.ready;
  held.device = has_device_ ? held.ready : kNoMove;
}

// -- computing --------------------------------------------------------------------------------------------------------

void PassMoves::add_all() {
  // Group by group, so that only one group's activations are held at a time.
  for (uint32_t first = 0; first < workload_.micro_batches; first += sizes_.micro_batch_group) {
    const uint32_t end = std::min(first + sizes_.micro_batch_group, workload_.micro_batches);
    forward(first, end);
    backward(first, end);
  }
  complete_others();
  device_units_.end_step(plan_, last_compute_);
  for (AreaCutter* area : {&host_units_, &device_units_.area(), &device_gradients_, &downloaded_, &keeping_, &moving_,
                           &offloaded_, &passing_, &spilled_}) {
    area->close_cycle(plan_);
  }
}

void PassMoves::add_compute(Direction direction, Move move, const std::vector<Held>& weights) {
  Compute compute{direction, move.use, move.micro_batch};
  for (size_t i = 0; i < weights.size(); ++i) {
    move.after.push_back(weights[i].ready);
    compute.weights.push_back({workload_.uses[move.use].units[i], has_device_ ? weights[i].device : weights[i].host});
  }
  move.after.push_back(last_compute_);
  compute.move = last_compute_ = add(plan_, std::move(move));
  plan_.computes.push_back(std::move(compute));
}

void PassMoves::forward(uint32_t first, uint32_t end) {
  // All pass through a unit before the next is fetched.
  for (uint32_t use = 0; use < workload_.uses.size(); ++use) {
    const std::vector<Held> weights = fetch(use, end - 1);
    for (uint32_t mb = first; mb < end; ++mb) forward_use(use, mb, weights);
    if (turns_at(use)) {
      turning_ = weights;
      continue;
    }
    for (const Held& held : weights) {
      device_units_.end_use(plan_, held.device, last_compute_);
      if (held.host != kNoMove) give_back(host_units_, held.host, {has_device_ ? held.device : last_compute_});
    }
  }
}

void PassMoves::forward_use(uint32_t use, uint32_t mb, const std::vector<Held>& weights) {
  Move move{.kind = MoveKind::forward,
            .lane = Lane::compute,
            .use = use,
            .micro_batch = mb,
            .seconds = workload_.uses[use].forward_s};
  const uint64_t kept = activation_bytes(use);
  const bool leaves = offloads(sizes_.activations[use]);
  if (kept > 0 && !leaves) keeping_.reserve_at(activation_place(use, mb), kept);
  if (kept > 0) (leaves ? moving_ : keeping_).cut(plan_, move, kept);
  add_compute(Direction::forward, std::move(move), weights);
  if (kept == 0) return;
  plan_.computes.back().activation = kept_[use][mb].made = last_compute_;
  if (leaves) offload(use, mb);
}

void PassMoves::offload(uint32_t use, uint32_t mb) {
  Kept& kept = kept_[use][mb];
  const bool spills = sizes_.spills_activations[use];
  const uint64_t bytes = activation_bytes(use);
  MoveId here = kept.made;
  auto move_of = [&](MoveKind kind, Lane lane) {
    return Move{
        .kind = kind, .lane = lane, .use = use, .micro_batch = mb, .bytes = bytes, .source = here, .after = {here}};
  };
  if (has_device_) {
    Move move = move_of(MoveKind::download_activation, Lane::device_to_host);
    AreaCutter& area = spills ? passing_ : offloaded_;
    if (!spills) area.reserve_at(activation_place(use, mb), bytes);
    area.cut(plan_, move, bytes);
    kept.offloaded = here = add(plan_, std::move(move));
    give_back(moving_, kept.made, {kept.offloaded});
  }
  if (!spills) return;
  Move move = move_of(MoveKind::spill_activation, Lane::nvme_write);
  spilled_.reserve_at(activation_place(use, mb), bytes);
  spilled_.cut(plan_, move, bytes);
  kept.spilled = add(plan_, std::move(move));
  give_back(has_device_ ? passing_ : moving_, here, {kept.spilled});
}

MoveId PassMoves::bring_back(uint32_t use, uint32_t mb) {
  const Kept& kept = kept_[use][mb];
  const uint64_t bytes = activation_bytes(use);
  MoveId here = kept.spilled != kNoMove ? kept.spilled : kept.offloaded;
  auto move_of = [&](MoveKind kind, Lane lane) {
    return Move{
        .kind = kind, .lane = lane, .use = use, .micro_batch = mb, .bytes = bytes, .source = here, .after = {here}};
  };
  if (kept.spilled != kNoMove) {
    Move move = move_of(MoveKind::fetch_activation, Lane::nvme_read);
    (has_device_ ? passing_ : moving_).cut(plan_, move, bytes);
    here = add(plan_, std::move(move));
    give_back(spilled_, kept.spilled, {here});
  }
  if (has_device_) {
    const MoveId in_host = here;
    Move move = move_of(MoveKind::upload_activation, Lane::host_to_device);
    moving_.cut(plan_, move, bytes);
    here = add(plan_, std::move(move));
    give_back(kept.spilled != kNoMove ? passing_ : offloaded_, in_host, {here});
  }
  return here;
}

void PassMoves::backward(uint32_t first, uint32_t end) {
  const bool is_last_group = end == workload_.micro_batches;
  const bool is_vertical = first == 0 && is_last_group;
  for (uint32_t use = static_cast<uint32_t>(workload_.uses.size()); use-- > first_trained_use_;) {
    const std::vector<Held> weights = turns_at(use) ? std::exchange(turning_, {}) : fetch(use, end - 1);
    const std::vector<uint32_t>& units = workload_.uses[use].units;
    for (uint32_t mb = first; mb < end; ++mb) {
      // The sum over micro-batches is in their order, so a device hands over either each one's or the sum of all.
      backward_use(use, mb, weights, !is_vertical || mb == first);
      if (is_vertical && mb + 1 < end) continue;
      for (uint32_t unit : units) hand_over(unit, use, mb);
      if (adds_up_ != kNoMove) give_back(device_gradients_, adds_up_, std::exchange(downloads_now_, {}));
    }
    for (size_t i = 0; i < units.size(); ++i) {
      const Held& held = weights[i];
      device_units_.end_use(plan_, held.device, last_compute_);
      std::vector<MoveId> until = {has_device_ ? held.device : last_compute_};
      if (is_last_group && uses_of(workload_, units[i]).front() == use) complete(units[i], held, until);
      if (held.host != kNoMove) give_back(host_units_, held.host, until);
    }
  }
}

void PassMoves::backward_use(uint32_t use, uint32_t mb, const std::vector<Held>& weights, bool begins_sum) {
  const Use& shape = workload_.uses[use];
  const bool left = offloads(sizes_.activations[use]) && kept_[use][mb].made != kNoMove;
  const MoveId here = left ? bring_back(use, mb) : kept_[use][mb].made;
  Move move{.kind = MoveKind::backward,
            .lane = Lane::compute,
            .use = use,
            .micro_batch = mb,
            .seconds = shape.backward_s + (recomputed(use) ? shape.forward_s : 0),
            .after = {here}};
  std::vector<Compute::Sum> laid_out;
  const uint64_t sums = has_device_ ? lay_out_sums(use, 0, laid_out) : 0;
  if (sums > 0 && begins_sum) device_gradients_.cut(plan_, move, sums);
  add_compute(Direction::backward, std::move(move), weights);
  if (begins_sum) adds_up_ = sums > 0 ? last_compute_ : kNoMove;
  if (adds_up_ != kNoMove) lay_out_sums(use, plan_.moves[adds_up_].place_offset_bytes, plan_.computes.back().sums);
  plan_.computes.back().activation = here;
  if (here != kNoMove) give_back(left ? moving_ : keeping_, here, {last_compute_});
}

uint64_t PassMoves::lay_out_sums(uint32_t use, uint64_t at, std::vector<Compute::Sum>& sums) const {
  for (uint32_t unit : workload_.uses[use].units) {
    if (!workload_.units[unit].trainable) continue;
    DeviceSumBytes bytes = device_sum_bytes(workload_, unit, sizes_.micro_batch_group);
    Compute::Sum& sum = sums.emplace_back(Compute::Sum{.unit = unit, .offset_bytes = at});
    sum.stays = plan_.rests_on_device(unit);
    if (sum.stays) bytes.rounded = 0;
    if (bytes.rounded > 0) sum.rounded_offset_bytes = at + bytes.sum;
    at += bytes.sum + bytes.rounded;
  }
  return at;
}

void PassMoves::hand_over(uint32_t unit, uint32_t use, uint32_t mb) {
  if (!workload_.units[unit].trainable) return;
  if (plan_.rests_on_device(unit)) {
    const uint64_t squares = squares_bytes(workload_.units[unit].elements);
    Move download{.kind = MoveKind::download_squares,
                  .lane = Lane::device_to_host,
                  .unit = unit,
                  .use = use,
                  .micro_batch = mb,
                  .bytes = squares,
                  .after = {last_compute_}};
    downloaded_.cut(plan_, download, round_up(squares, kAlignmentBytes));
    const MoveId here = add(plan_, std::move(download));
    give_back(downloaded_, here, {});
    // The sum has been rounded by then; the place of what it was rounded to is of this unit alone.
    downloads_now_.push_back(last_compute_);
    handed_over_[unit].push_back(here);
    return;
  }
  const uint64_t bytes = gradient_sum_bytes(workload_, unit, sizes_.micro_batch_group, has_device_);
  MoveId here = last_compute_;
  auto move_of = [&](MoveKind kind, Lane lane, uint64_t moved) {
    return Move{
        .kind = kind, .lane = lane, .unit = unit, .use = use, .micro_batch = mb, .bytes = moved, .after = {here}};
  };
  // The CPU adds up a rank's micro-batches in its memory, and then all ranks'.
  if (workload_.ranks * workload_.groups > 1 && (has_device_ || completes(unit, use, mb))) {
    const CollectiveBytes taken = reduced_unit_bytes(workload_, unit, bytes);
    Move reduce = move_of(MoveKind::reduce, Lane::collective, taken.all);
    reduce.network_bytes = taken.network;
    here = add(plan_, std::move(reduce));
  }
  if (has_device_) {
    Move download = move_of(MoveKind::download_gradient, Lane::device_to_host, bytes);
    downloaded_.cut(plan_, download, round_up(bytes, kAlignmentBytes));
    here = add(plan_, std::move(download));
    downloads_now_.push_back(here);
    give_back(downloaded_, here, {});
  }
  handed_over_[unit].push_back(here);
}

void PassMoves::complete(uint32_t unit, const Held& held, std::vector<MoveId>& until) {
  if (!workload_.units[unit].trainable) return;
  // Weights that rest in host memory are not changed before the host knows that they have been uploaded.
  std::vector<MoveId> until_complete = handed_over_[unit];
  if (held.device != kNoMove) until_complete.push_back(held.device);
  completed_by_[unit] = until_complete;
  for (TileId tile = plan_.tiles.first_of(unit); tile < plan_.tiles.first_of(unit + 1); ++tile) {
    if (deferred_[tile] || waits_for_verdict(tile)) continue;
    update_.add_tile(tile, until_complete, held.host);
    if (held.host != kNoMove) until.push_back(plan_.of_tile[tile].update);
  }
}

// What is updated in place, and may be taken back until the verdict.
bool PassMoves::waits_for_verdict(TileId tile) const {
  return plan_.clipping && plan_.placements[tile].state_in_host();
}

void PassMoves::complete_others() {
  std::vector<uint32_t> units = completion_order(workload_);
  std::reverse(units.begin(), units.end());
  for (uint32_t unit : units) {
    for (TileId tile = plan_.tiles.first_of(unit); tile < plan_.tiles.first_of(unit + 1); ++tile) {
      if (!deferred_[tile] && !waits_for_verdict(tile)) continue;
      // The copy of the weights that backward had is gone by then.
      update_.add_tile(tile, completed_by_[unit], kNoMove);
      plan_.of_tile[tile].is_deferred = deferred_[tile];
    }
  }
}

void PassMoves::tie_to_step_before() {
  // A gradient that stays on the device is not rounded over that of the step before while its sums still come down.
  for (const Compute& compute : plan_.computes) {
    for (const Compute::Sum& sum : compute.sums) {
      if (!sum.stays) continue;
      std::vector<MoveId>& waits = plan_.moves[compute.move].after_previous;
      waits.insert(waits.end(), handed_over_[sum.unit].begin(), handed_over_[sum.unit].end());
    }
  }
  for (uint32_t unit = 0; unit < current_.size(); ++unit) {
    if (current_[unit] == kNoMove) continue;
    std::vector<MoveId>& waits = plan_.moves[current_[unit]].after_previous;
    for (TileId tile = plan_.tiles.first_of(unit); tile < plan_.tiles.first_of(unit + 1); ++tile) {
      const Plan::TileMoves& moves = plan_.of_tile[tile];
      const bool on_nvme = plan_.placements[tile].weight_on_drives();
      // Where weights rest in host memory, the reread after a skip brings back what a speculative update had changed.
      for (MoveId id : on_nvme ? std::vector<MoveId>{moves.write, moves.write_again}
                               : std::vector<MoveId>{moves.update, moves.reread, moves.update_again}) {
        if (id != kNoMove) waits.push_back(id);
      }
    }
  }
}

}  // namespace penstock
