// Where everything that a plan takes lies: the one account of memory. The planner fits its lines into the budgets, the
// engine cuts its arena by them, and users read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tiering/tier.h"

namespace penstock {

// Memory in which the plan gives every move its place.
enum class Area : uint8_t {
  host_units,             // weights on their way from the drives, and used there where the CPU computes
  device_units,           // the same on a device, where that computes
  device_gradients,       // of the units of one use, added up in fp32 on the device
  downloaded_gradients,   // such a sum in host memory, until it is taken in
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
  fetched_gradients,
  sums,
  units,
  downloaded_gradients,
  activations,
  offloaded_activations,
  resting_weights,
  resting_states,
  forward_units,  // of forward passes within steps
  device_units,
  device_gradients,
  device_activations,
  device_forward_units,
  device_resting_weights,
  device_resting_states,
  device_resting_gradients,  // of trained units that rest on the device, one after another
  none                       // of no arena: on the drives, or memory that the program or the trainer has
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

}  // namespace penstock
