#include "tiering/plan/plan_builder.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tiering/plan/plan_pass.h"
#include "tiering/plan/plan_update.h"

namespace penstock {

std::vector<uint32_t> completion_order(const Workload& workload) {
  std::vector<uint32_t> units(workload.units.size());
  std::iota(units.rbegin(), units.rend(), 0);
  std::vector<size_t> first_use(units.size());
  for (uint32_t unit : units) {
    const std::vector<uint32_t> uses = uses_of(workload, unit);
    first_use[unit] = uses.empty() ? 0 : uses.front();
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

WeightBytes weight_bytes(const Workload& workload, const TileMap& tiles, uint32_t number) {
  const Unit& unit = workload.units[number];
  const uint64_t computed = round_up(unit.elements * bytes_of(workload.form.weight), kAlignmentBytes);
  return {.at_rest = tiles.weight_bytes(number), .dequantised = unit.code ? computed : 0};
}

std::vector<TileRange> weight_rests(const Workload& workload, const TileMap& tiles) {
  std::vector<TileRange> rests;
  if (workload.pass == Pass::training) {
    for (uint32_t unit : completion_order(workload)) rests.push_back({tiles.first_of(unit), tiles.first_of(unit + 1)});
  } else {
    for (TileId tile : update_order(workload, tiles)) rests.push_back({tile, tile + 1});
  }
  return rests;
}

uint32_t rests_placed_first(const Workload& workload, const TileMap& tiles) {
  uint64_t trained = 0, frozen = 0;
  for (const Tile& tile : tiles.tiles()) (workload.units[tile.unit].trainable ? trained : frozen) += tile.slot_bytes();
  if (workload.pass != Pass::training || 2 * trained > frozen) return 0;
  return static_cast<uint32_t>(std::ranges::count_if(workload.units, &Unit::trainable));
}

namespace {

// Which `chosen` of `count` places: as evenly spread as can be.
std::vector<bool> spread_evenly(uint64_t chosen, uint64_t count) {
  std::vector<bool> is_chosen(count, false);
  for (uint64_t i = 0; i < count; ++i) is_chosen[i] = (i + 1) * chosen / count > i * chosen / count;
  return is_chosen;
}

// Those of weight_rests() that rest in host memory.
std::vector<TileRange> rests_in_host(const Workload& workload, const TileMap& tiles, uint32_t count) {
  std::vector<TileRange> rests = weight_rests(workload, tiles);
  const uint32_t first = rests_placed_first(workload, tiles);
  const auto is_trained = [&](const TileRange& rest) { return workload.units[tiles[rest.first].unit].trainable; };
  if (first > 0) std::ranges::stable_partition(rests, is_trained);
  std::vector<TileRange> chosen;
  auto choose = [&](uint64_t begin, uint64_t end, uint64_t how_many) {
    const std::vector<bool> is_chosen = spread_evenly(how_many, end - begin);
    for (uint64_t i = begin; i < end; ++i)
      if (is_chosen[i - begin]) chosen.push_back(rests[i]);
  };
  choose(0, first, std::min(first, count));
  choose(first, rests.size(), count - std::min(first, count));
  return chosen;
}

void size_lanes(Plan& plan, const PlanSizes& sizes) {
  auto pieces = [&](Pool pool) -> uint64_t& { return plan.pool_pieces[static_cast<size_t>(pool)]; };
  pieces(Pool::window) = sizes.window_tiles;
  pieces(Pool::gradient) = sizes.backlog_tiles + sizes.leaving_tiles + sizes.retained_tiles;
  pieces(Pool::returned) = sizes.returned_tiles;
  plan.lane_room.fill(1);
  auto room = [&](Lane lane) -> uint64_t& { return plan.lane_room[static_cast<size_t>(lane)]; };
  room(Lane::nvme_read) = room(Lane::nvme_write) = tiles_a_lane(sizes) * plan.tiles.slot_bytes_max();
  room(Lane::update) = 2;
}

}  // namespace

std::vector<Placement> place_tiles(const Workload& workload, const TileMap& tiles, const PlanSizes& sizes) {
  std::vector<Placement> placements(tiles.size());
  for (const TileRange& rest : rests_in_host(workload, tiles, sizes.host_weights)) {
    for (TileId tile = rest.first; tile < rest.end; ++tile) placements[tile].weight = Tier::host;
  }
  const std::vector<TileId> order = update_order(workload, tiles);
  std::vector<TileId> candidates;
  for (TileId tile : order) {
    if (placements[tile].weight == Tier::host) candidates.push_back(tile);
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
    const bool stays = placements[tile].state == Tier::host ? of_states > 0 : others[other++];
    if (placements[tile].state == Tier::host && of_states > 0) --of_states;
    placements[tile].retained = stays ? Tier::host : Tier::nvme;
  }
  return placements;
}

Plan build_plan(const Workload& workload, const MachineProfile& machine, TileMap tiles, const PlanSizes& sizes) {
  Plan plan(std::move(tiles));
  plan.clipping = workload.clipping.on();
  plan.micro_batches = workload.micro_batches;
  plan.micro_batch_group = sizes.micro_batch_group;
  plan.activations = sizes.activations;
  plan.stores_activations = sizes.stores_activations;
  plan.sums = sizes.sums;
  plan.of_tile.resize(plan.tiles.size());
  plan.placements = place_tiles(workload, plan.tiles, sizes);
  const std::vector<TileId> order = update_order(workload, plan.tiles);
  size_lanes(plan, sizes);

  plan.on_device = workload.pass == Pass::training && machine.devices > 0 && machine.host_to_device_gbps > 0;
  UpdateMoves update(plan, order);
  if (workload.pass == Pass::update_only) {
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
