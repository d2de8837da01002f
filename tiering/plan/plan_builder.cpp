#include "tiering/plan/plan_builder.h"

#include <algorithm>
#include <utility>

#include "tiering/plan/plan_pass.h"
#include "tiering/plan/plan_update.h"

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

// Tiles that rest in host memory wait for the verdict with their update, so their gradients stay here first.
std::vector<bool> retained_in_host(const PlanSizes& sizes, const std::vector<bool>& state_in_host, uint32_t count) {
  uint32_t first = std::min(sizes.retained_tiles,
                            static_cast<uint32_t>(std::count(state_in_host.begin(), state_in_host.end(), true)));
  uint32_t others = count - static_cast<uint32_t>(std::count(state_in_host.begin(), state_in_host.end(), true));
  std::vector<bool> spread = spread_evenly(sizes.retained_tiles - first, others);
  std::vector<bool> retained(count, false);
  for (uint32_t i = 0, other = 0; i < count; ++i) {
    if (!state_in_host[i]) retained[i] = spread[other++];
    if (state_in_host[i] && first > 0) retained[i] = first-- > 0;
  }
  return retained;
}

// A frozen tile is only ever read, and rests on nvme.
void place(Plan& plan, const PlanSizes& sizes, const std::vector<uint32_t>& order) {
  const uint32_t count = static_cast<uint32_t>(order.size());
  std::vector<bool> weight = spread_evenly(sizes.host_weight_tiles, count);
  std::vector<bool> state = resting_states(sizes, count);
  std::vector<bool> retained = retained_in_host(sizes, state, count);
  for (uint32_t i = 0; i < count; ++i) {
    Placement& placement = plan.placements[order[i]];
    placement.weight = weight[i] ? Tier::host : Tier::nvme;
    placement.state = state[i] ? Tier::host : Tier::nvme;
    placement.retained = retained[i] ? Tier::host : Tier::nvme;
  }
}

void size_pools(Plan& plan, const PlanSizes& sizes) {
  auto capacity = [&](Pool pool) -> uint64_t& { return plan.pool_capacity[static_cast<size_t>(pool)]; };
  capacity(Pool::window) = sizes.window_tiles;
  capacity(Pool::gradient) = sizes.backlog_tiles + sizes.leaving_tiles + sizes.retained_tiles;
  capacity(Pool::returned) = sizes.returned_tiles;
  capacity(Pool::unit_host) = sizes.unit_host_bytes;
  capacity(Pool::unit_device) = sizes.unit_device_bytes;
  capacity(Pool::activation_device) = sizes.activation_device_bytes;
  capacity(Pool::activation_host) = sizes.activation_host_bytes;
  plan.lane_room.fill(1);
  auto room = [&](Lane lane) -> uint64_t& { return plan.lane_room[static_cast<size_t>(lane)]; };
  room(Lane::nvme_read) = room(Lane::nvme_write) = tiles_a_lane(sizes) * plan.tiles.slot_bytes_max();
  room(Lane::update) = 2;
}

}  // namespace

Plan build_plan(const Workload& workload, const MachineProfile& machine, TileMap tiles, const PlanSizes& sizes) {
  Plan plan(std::move(tiles));
  plan.clipping = workload.clipping.on;
  plan.micro_batch_group = sizes.micro_batch_group;
  plan.activations = sizes.activations;
  plan.accumulated_bytes = sizes.accumulated_bytes;
  plan.of_tile.resize(plan.tiles.size());
  plan.placements.resize(plan.tiles.size());
  const std::vector<uint32_t> order = update_order(workload, plan.tiles);
  place(plan, sizes, order);
  size_pools(plan, sizes);

  const bool has_device = machine.devices > 0 && machine.host_to_device_gbps > 0;
  UpdateMoves update(plan, order);
  PassMoves pass(workload, sizes, has_device, plan, update);
  if (workload.pass == Pass::training) {
    pass.add_all();
  } else {
    for (uint32_t tile : order) update.add_tile(tile, {}, kNoMove);
  }
  update.finish();
  pass.tie_forward_to_updates();
  return plan;
}

}  // namespace penstock
