// What of a plan fits its budgets: how many windows and places, and what rests in host memory. The planner asks for
// each of the choices that it tries.
#pragma once

#include "tiering/plan/plan_builder.h"
#include "tiering/plan/planner.h"

namespace penstock {

struct PlanFit {
  TileMap tiles;
  PlanSizes sizes;
  std::vector<BudgetLine> lines;
};

// The working memory that the choices ask for, and resting state in what is then left of the host budget. Refuses with
// the line that has no room. REQUIRES: choices.tile_elements.
Result<PlanFit> fit_plan(const PlanRequest& request, const PlanChoices& choices);

// The most of [low, high] for which `fits` holds. REQUIRES: what fits still fits with less; `low` does, or nothing.
template <typename Fits>
uint32_t most_that_fits(uint32_t low, uint32_t high, const Fits& fits) {
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// What suits the drives first; fewer only where memory is short.
std::vector<uint32_t> windows_worth_trying(const MachineProfile& machine);

// The most tiles whose gradients come at once, after a use's backward.
uint32_t tiles_of_a_use(const Workload& workload, const TileMap& tiles, const std::vector<bool>& on_device);

// The plan's moves and their state in two open steps, and a tile's lines in the store's tables.
uint64_t book_bytes_per_tile(const PlanRequest& request);

}  // namespace penstock
