// Builds the moves of one step from sizes that the planner has settled.
#pragma once

#include <optional>

#include "tiering/plan/machine_profile.h"
#include "tiering/plan/pass_bytes.h"
#include "tiering/plan/plan.h"

namespace penstock {

struct PlanSizes {
  uint32_t window_tiles = 0;
  uint32_t ahead_window_tiles = 0;  // besides, for what is read ahead of a verdict
  uint32_t tiles_a_lane = 0;        // of them, how many a lane of an update carries at once
  uint32_t backlog_tiles = 0;
  uint32_t deferred_tiles = 0;  // gradients that wait for the next forward, besides those that are retained
  uint32_t leaving_tiles = 0;   // gradients on their way to the drives
  uint32_t fetched_gradient_tiles = 0;
  double deferred_share = 0;      // of a unit's tiles: PlanChoices::deferred_share
  uint32_t retained_tiles = 0;    // gradients that wait for the verdict in host memory; the others on nvme
  std::vector<bool> on_device;    // by unit: rests on the device; empty: none does
  uint32_t host_weights = 0;      // of weight_ranges(): how many rest in host memory
  uint32_t host_state_tiles = 0;  // of the tiles whose weights do, how many whose state does too
  SumLayout sums;

  // A training pass.
  uint32_t micro_batch_group = 1;
  std::vector<ActivationChoice> activations;  // by use
  bool stores_activations = false;
  uint64_t host_units_bytes = 0;
  uint64_t device_units_bytes = 0;
  uint64_t forward_units_bytes = 0, device_forward_units_bytes = 0;  // of forward passes within steps
  uint64_t kept_bytes = 0;                                           // activations that stay where they were made
  uint64_t moving_bytes = 0;  // those there on their way to or from where they are offloaded to
  uint64_t offloaded_bytes = 0;
  uint64_t passing_bytes = 0;  // those of a device that pass through host memory on their way to the drives and back
  uint64_t spilled_bytes = 0;
  std::vector<bool> spills_activations;  // by use, of those that are offloaded: to the drives
  uint64_t device_gradients_bytes = 0;
  uint64_t downloaded_bytes = 0;
  // Not given places by the plan, but there while units are computed.
  uint64_t computing_bytes = 0;
};

// Units in the order in which backward completes their gradients: last use first.
std::vector<uint32_t> completion_order(const Workload& workload);
// Trainable tiles in that order.
std::vector<TileId> update_order(const Workload& workload, const TileMap& tiles);
// Of `count`, as many as that share of them; none given: 0.
uint32_t share_of(std::optional<double> share, uint64_t count);
// Which units rest on the device: PlanChoices::device_share of those that may, where all micro-batches of a group of
// `group` pass through a unit before the next is used.
std::vector<bool> units_on_device(const Workload& workload, std::optional<double> share, uint32_t group);
inline bool rests_on_device(const std::vector<bool>& on_device, uint32_t unit) {
  return !on_device.empty() && on_device[unit];
}

// Tiles whose weights rest in the same tier, of units that do not rest on the device: a whole unit's where they are
// computed with, so that a view of them is one run of memory; else each alone.
struct TileRange {
  TileId first = 0;
  TileId end = 0;
};
std::vector<TileRange> weight_ranges(const Workload& workload, const TileMap& tiles,
                                     const std::vector<bool>& on_device);
// How many of them rest in host memory before any other does: those that are trained, where they take at most half of
// what the frozen ones beside them weigh, as adapters do. A byte of either saves the drives two a step, but what is
// trained is many small transfers, and waits for gradients.
uint32_t ranges_placed_first(const Workload& workload, const TileMap& tiles, const std::vector<bool>& on_device = {});

// Where every tile rests, as evenly spread as can be, so that the lanes are loaded evenly.
std::vector<Placement> place_tiles(const Workload& workload, const TileMap& tiles, const PlanSizes& sizes);

// By tile: whether it is updated behind all others. Not of what the next forward begins with.
std::vector<bool> deferred_tiles(const Workload& workload, const TileMap& tiles,
                                 const std::vector<Placement>& placements, double share);

Plan build_plan(const Workload& workload, const MachineProfile& machine, TileMap tiles, const PlanSizes& sizes);

}  // namespace penstock
