// Where everything that a plan takes lies: the one account of memory. The planner fits its lines into the budgets, the
// engine cuts its arena by them, and users read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tiering/tier.h"
#include "tiering/unit.h"

namespace penstock {

// Memory in which the plan gives every move its place.
enum class Area : uint8_t {
  host_units,             // weights on their way from the drives, and used there where the CPU computes
  device_units,           // the same on a device, where that computes
  device_gradients,       // of the units of one use, added up in fp32 on the device
  lowered_gradients,      // such a sum in host memory, until it is taken in
  activations,            // where they are computed: kept there, or on their way from there and back
  offloaded_activations,  // in host memory, of a device: waiting there, or on their way to the drives and back
  spilled_activations,    // on the drives
  none
};
constexpr size_t kAreas = 8;
const char* name_of(Area area);

// A run of the host arena, or of the device's.
enum class Region : uint8_t {
  windows,
  gradients,  // backlog, leaving and retained are places alike
  returned,
  sums,
  units,
  lowered_gradients,
  activations,
  offloaded_activations,
  resting_weights,
  resting_states,
  forward_units,  // of forward passes within steps
  device_units,
  device_gradients,
  device_activations,
  device_forward_units,
  none  // of no arena: on the drives, or memory that the program or the trainer has
};

struct BudgetLine {
  Tier tier = Tier::host;
  std::string name;
  uint64_t bytes = 0;
  Region region = Region::none;
  uint64_t offset_bytes = 0;  // in its tier's arena

  bool operator==(const BudgetLine&) const = default;
};

struct MemoryRun {
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
};

// Regions of this size and more begin at a multiple of it, so that none shares a huge page with another.
constexpr uint64_t kHugePageBytes = 2 * kMiB;

// Gives every line of an arena its offset, regions in the order of their first lines, and adds a line for what the
// rounding to pages takes in host memory, if that is anything. REQUIRES: lines of one region are neighbours.
void lay_out(std::vector<BudgetLine>& lines);
MemoryRun run_of(const std::vector<BudgetLine>& lines, Region region);
// Of the host's arena, or of the device's; 0: the plan uses no device.
uint64_t arena_bytes(const std::vector<BudgetLine>& lines, Tier tier = Tier::host);
uint64_t needed_bytes(const std::vector<BudgetLine>& lines, Tier tier);

// Where gradients are added up in fp32: each use's of a unit apart, since the sum over micro-batches of each use comes
// before the sum over uses.
struct SumLayout {
  // By unit, then by the unit's uses in forward order: where that sum lies in the region. Empty for a unit that needs
  // none. Units whose sums are never under way together may share a place.
  std::vector<std::vector<uint64_t>> offset_bytes;
  uint64_t bytes = 0;
};
// What the plan has room for, of one use and micro-batch: what backward needs of forward.
uint64_t activation_place_bytes(const Use& use, ActivationChoice choice);

// What a unit's gradient of one use takes on a device that adds it up: the sum in fp32, and what it is rounded to where
// it is then complete, because all micro-batches pass through the unit's one use before the next is used.
struct DeviceSumBytes {
  uint64_t sum = 0;
  uint64_t rounded = 0;
};
DeviceSumBytes device_sum_bytes(const Workload& workload, uint32_t unit, uint32_t group);

// `group`: how many micro-batches pass through a unit before the next is used.
SumLayout lay_out_sums(const Workload& workload, uint32_t group);

}  // namespace penstock
