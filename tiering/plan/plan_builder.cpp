#include "tiering/plan/plan_builder.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tiering/plan/plan_pass.h"
#include "tiering/plan/plan_update.h"

namespace penstock {

std::vector<uint32_t> completion_order(const Workload& workload) {
  std::vector<uint32_t> units(workload.units.size());
  std::iota(units.rbegin(), units.rend(), 0);
  if (workload.uses.empty()) return units;
  std::vector<size_t> first_use(units.size(), 0);
  for (size_t use = workload.uses.size(); use-- > 0;) {
    for (uint32_t unit : workload.uses[use].units) first_use[unit] = use;
  }
  std::stable_sort(units.begin(), units.end(), [&](uint32_t a, uint32_t b) { return first_use[a] > first_use[b]; });
  return units;
}

std::vector<TileId> update_order(const Workload& workload, const TileMap& tiles) {
  std::vector<TileId> order;
  for (uint32_t unit : completion_order(workload)) {
    if (!workload.units[unit].trainable) continue;
    for (TileId tile = tiles.first_of(unit); tile < tiles.first_of(unit + 1); ++tile) order.push_back(tile);
  }
  return order;
}

uint32_t share_of(std::optional<double> share, uint64_t count) {
  return share ? static_cast<uint32_t>(std::lround(std::clamp(*share, 0.0, 1.0) * static_cast<double>(count))) : 0;
}

std::vector<bool> units_on_device(const Workload& workload, std::optional<double> share, uint32_t group) {
  if (share.value_or(0) <= 0) return {};
  std::vector<uint32_t> may_rest;
  for (uint32_t unit : completion_order(workload)) {
    if (may_rest_on_device(workload, unit, group)) may_rest.push_back(unit);
  }
  std::vector<bool> on_device(workload.units.size(), false);
  std::for_each_n(may_rest.rbegin(), share_of(share, may_rest.size()), [&](uint32_t unit) { on_device[unit] = true; });
  return on_device;
}

std::vector<TileRange> weight_ranges(const Workload& workload, const TileMap& tiles,
                                     const std::vector<bool>& on_device) {
  std::vector<TileRange> ranges;
  if (workload.scope == StepScope::training) {
    for (uint32_t unit : completion_order(workload)) {
      if (!rests_on_device(on_device, unit)) ranges.push_back({tiles.first_of(unit), tiles.first_of(unit + 1)});
    }
  } else {
    for (TileId tile : update_order(workload, tiles)) ranges.push_back({tile, tile + 1});
  }
  return ranges;
}

uint32_t ranges_placed_first(const Workload& workload, const TileMap& tiles, const std::vector<bool>& on_device) {
  uint64_t trained = 0, frozen = 0;
  for (const Tile& tile : tiles.tiles()) {
    if (rests_on_device(on_device, tile.unit)) continue;
    (workload.units[tile.unit].trainable ? trained : frozen) += tile.slot_bytes();
  }
  if (workload.scope != StepScope::training || 2 * trained > frozen) return 0;
  uint32_t ranges = 0;
  for (uint32_t unit = 0; unit < workload.units.size(); ++unit) {
    ranges += workload.units[unit].trainable && !rests_on_device(on_device, unit);
  }
  return ranges;
}

namespace {

// Which `chosen` of `count` places: as evenly spread as can be.
std::vector<bool> spread_evenly(uint64_t chosen, uint64_t count) {
  std::vector<bool> is_chosen(count, false);
  for (uint64_t i = 0; i < count; ++i) is_chosen[i] = (i + 1) * chosen / count > i * chosen / count;
  return is_chosen;
}

// Those of weight_ranges() that rest in host memory.
std::vector<TileRange> weight_ranges_in_host(const Workload& workload, const TileMap& tiles, const PlanSizes& sizes) {
  std::vector<TileRange> ranges = weight_ranges(workload, tiles, sizes.on_device);
  const uint32_t first = ranges_placed_first(workload, tiles, sizes.on_device), count = sizes.host_weights;
  const auto is_trained = [&](const TileRange& range) { return workload.units[tiles[range.first].unit].trainable; };
  if (first > 0) std::ranges::stable_partition(ranges, is_trained);
  std::vector<TileRange> chosen;
  auto choose = [&](uint64_t begin, uint64_t end, uint64_t how_many) {
    const std::vector<bool> is_chosen = spread_evenly(how_many, end - begin);
    for (uint64_t i = begin; i < end; ++i)
      if (is_chosen[i - begin]) chosen.push_back(ranges[i]);
  };
  choose(0, first, std::min(first, count));
  choose(first, ranges.size(), count - std::min(first, count));
  return chosen;
}

void size_lanes(Plan& plan, const PlanSizes& sizes) {
  auto pieces = [&](Pool pool) -> uint64_t& { return plan.pool_pieces[static_cast<size_t>(pool)]; };
  pieces(Pool::window) = sizes.window_tiles + sizes.ahead_window_tiles;
  plan.ahead_windows = sizes.ahead_window_tiles;
  pieces(Pool::gradient) = sizes.backlog_tiles + sizes.leaving_tiles + sizes.retained_tiles + sizes.deferred_tiles;
  pieces(Pool::fetched_gradient) = sizes.fetched_gradient_tiles;
  plan.lane_room.fill(1);
  auto room = [&](Lane lane) -> uint64_t& { return plan.lane_room[static_cast<size_t>(lane)]; };
  room(Lane::nvme_read) = room(Lane::nvme_write) = sizes.tiles_a_lane * plan.tiles.slot_bytes_max();
  room(Lane::update) = 2;
}

}  // namespace

std::vector<Placement> place_tiles(const Workload& workload, const TileMap& tiles, const PlanSizes& sizes) {
  std::vector<Placement> placements(tiles.size());
  for (const TileRange& range : weight_ranges_in_host(workload, tiles, sizes)) {
    for (TileId tile = range.first; tile < range.end; ++tile) placements[tile].weight = Tier::host;
  }
  std::vector<TileId> order = update_order(workload, tiles);
  std::erase_if(order, [&](TileId tile) { return rests_on_device(sizes.on_device, tiles[tile].unit); });
  for (TileId tile = 0; tile < tiles.size(); ++tile) {
    if (!rests_on_device(sizes.on_device, tiles[tile].unit)) continue;
    placements[tile].weight = Tier::device;
    if (workload.units[tiles[tile].unit].trainable) placements[tile].state = placements[tile].retained = Tier::device;
  }
  std::vector<TileId> candidates;
  for (TileId tile : order) {
    if (placements[tile].weight_in_host()) candidates.push_back(tile);
  }
  const std::vector<bool> state =
      spread_evenly(std::min<uint64_t>(sizes.host_state_tiles, candidates.size()), candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) placements[candidates[i]].state = state[i] ? Tier::host : Tier::nvme;

  // Tiles that rest in host memory wait for the verdict with their update, so their gradients stay here first.
  auto states = static_cast<uint32_t>(std::count(state.begin(), state.end(), true));
  uint32_t of_states = std::min(sizes.retained_tiles, states);
  const std::vector<bool> others = spread_evenly(sizes.retained_tiles - of_states, order.size() - states);
  size_t other = 0;
  for (TileId tile : order) {
    const bool stays = placements[tile].state_in_host() ? of_states > 0 : others[other++];
    if (placements[tile].state_in_host() && of_states > 0) --of_states;
    placements[tile].retained = stays ? Tier::host : Tier::nvme;
  }
  return placements;
}

std::vector<bool> deferred_tiles(const Workload& workload, const TileMap& tiles,
                                 const std::vector<Placement>& placements, double share) {
  std::vector<bool> deferred(tiles.size(), false);
  if (!(share > 0) || workload.scope != StepScope::training) return deferred;
  std::vector<uint32_t> order = completion_order(workload);
  const std::vector<uint32_t>& first_units = workload.uses.front().units;
  std::erase_if(order, [&](uint32_t unit) { return std::ranges::find(first_units, unit) != first_units.end(); });
  for (uint32_t unit : order) {
    if (!workload.units[unit].trainable) continue;
    const TileId first = tiles.first_of(unit);
    const uint64_t count = tiles.first_of(unit + 1) - first;
    const std::vector<bool> is_chosen = spread_evenly(share_of(share, count), count);
    for (uint64_t i = 0; i < count; ++i) deferred[first + i] = is_chosen[i] && placements[first + i].state_on_drives();
  }
  return deferred;
}

Plan build_plan(const Workload& workload, const MachineProfile& machine, TileMap tiles, const PlanSizes& sizes) {
  Plan plan(std::move(tiles));
  plan.clipping = workload.clipping.may_take_back();
  plan.micro_batches = workload.micro_batches;
  plan.micro_batch_group = sizes.micro_batch_group;
  plan.activations = sizes.activations;
  plan.stores_activations = sizes.stores_activations;
  plan.sums = sizes.sums;
  plan.of_tile.resize(plan.tiles.size());
  plan.placements = place_tiles(workload, plan.tiles, sizes);
  const std::vector<TileId> order = update_order(workload, plan.tiles);
  size_lanes(plan, sizes);

  plan.on_device = workload.scope == StepScope::training && machine.copies_to_device();
  UpdateMoves update(plan, order, machine.device_update_gbps());
  if (workload.scope == StepScope::update_only) {
    for (TileId tile : order) update.add_tile(tile, {}, kNoMove);
    update.finish();
    return plan;
  }
  PassMoves pass(workload, sizes, plan, update);
  pass.add_all();
  update.finish();
  pass.tie_to_step_before();
  return plan;
}

}  // namespace penstock
