// Builds the moves of one step from sizes that the planner has settled.
#pragma once

#include "tiering/plan/machine_profile.h"
#include "tiering/plan/plan.h"

namespace penstock {

struct PlanSizes {
  uint32_t window_tiles = 0;
  uint32_t backlog_tiles = 0;
  uint32_t leaving_tiles = 0;  // on their way to the drives
  uint32_t returned_tiles = 0;
  uint32_t retained_tiles = 0;     // gradients that wait for the verdict in host memory; the others on nvme
  uint32_t host_weight_tiles = 0;  // whose weight rests in host memory
  uint32_t host_state_tiles = 0;   // of those, whose state does too
  uint64_t accumulated_bytes = 0;

  // A training pass.
  uint32_t micro_batch_group = 1;
  ActivationChoice activations = ActivationChoice::keep;
  uint64_t unit_host_bytes = 0;
  uint64_t unit_device_bytes = 0;
  uint64_t activation_device_bytes = 0;
  uint64_t activation_host_bytes = 0;
  // Not taken by moves, but there while units are computed.
  uint64_t gradient_device_bytes = 0;
  uint64_t computing_bytes = 0;
};

// How many tiles a lane of an update carries at once: reads, updates and writes share the windows.
inline uint32_t tiles_a_lane(const PlanSizes& sizes) { return sizes.window_tiles < 3 ? 1 : sizes.window_tiles / 3; }

// Trainable tiles in the order in which backward completes their gradients: last unit first.
std::vector<uint32_t> update_order(const Workload& workload, const TileMap& tiles);

// Which `chosen` of `count` places: as evenly spread as can be, so that the lanes are loaded evenly.
std::vector<bool> spread_evenly(uint32_t chosen, uint32_t count);
// Of the tiles in update order, those whose state rests in host memory: some of those whose weight does.
std::vector<bool> resting_states(const PlanSizes& sizes, uint32_t count);
uint64_t resting_bytes(const std::vector<uint64_t>& bytes, const std::vector<bool>& chosen);

Plan build_plan(const Workload& workload, const MachineProfile& machine, TileMap tiles, const PlanSizes& sizes);

}  // namespace penstock
