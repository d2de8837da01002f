#include "tiering/plan/planner.h"

#include <algorithm>

#include "tiering/plan/plan_fit.h"

namespace penstock {
namespace {

// Enough in flight for a drive, and little enough that all windows together stay in a CPU's cache: where a drive's
// bytes pass through the CPU, it is a fifth slower once they come from memory.
constexpr uint64_t kSlotBytesUsual = 3 * kMiB / 2;
// Larger tiles only where there would be more than this many, for each costs decisions and a line of the table.
constexpr uint64_t kSlotBytesMost = 16 * kMiB;
constexpr uint64_t kTilesUsual = 16 * 1024;

// The largest tile of those with the fewest elements, and how many there are of them, without a map of them all.
struct SmallestTiles {
  explicit SmallestTiles(const Workload& workload) {
    Workload one_of_each;
    one_of_each.form = workload.form;
    for (const Unit& unit : workload.units) {
      count += ceil_div(unit.elements, kBlockElements);
      one_of_each.units.push_back({.name = "",
                                   .elements = std::min(unit.elements, kBlockElements),
                                   .trainable = unit.trainable,
                                   .code = unit.code,
                                   .parameters = {}});
    }
    const TileMap tiles(one_of_each, kBlockElements);
    slot_bytes = std::max<uint64_t>(1, tiles.slot_bytes_max());
    gradient_bytes = tiles.gradient_bytes_max();
  }

  uint64_t slot_bytes = 1, gradient_bytes = 0, count = 0;
};

// Without what fills up units between parameters.
uint64_t named_elements(const Workload& workload) {
  uint64_t sum = 0;
  for (const Unit& unit : workload.units) {
    if (unit.parameters.empty()) sum += unit.elements;
    for (const Parameter& parameter : unit.parameters) sum += parameter.elements;
  }
  return sum;
}

Status smallest_refused(const PlanRequest& request, const Status& last) {
  const uint32_t ranks = request.workload.ranks;
  return last.within(text("plan for ", named_elements(request.workload), " parameters",
                          ranks > 1 ? text(", the part of one of ", ranks, " ranks") : ""));
}

}  // namespace

uint32_t slots_per_tile(const PlanRequest& request) {
  if (request.slots != 0) return request.slots;
  bool relaxed = request.durability.value_or(Durability{}).kind != Durability::Kind::step;
  return relaxed && request.workload.clipping.may_take_back() ? 3 : 2;
}

Result<std::vector<BudgetLine>> budget_lines(const PlanRequest& request, const PlanChoices& choices) {
  PENSTOCK_TRY(validate(request.workload));
  PENSTOCK_TRY_ASSIGN(fitted, fit_plan(request, choices));
  return std::move(fitted.lines);
}

Result<Plan> make_plan_as_chosen(const PlanRequest& request, const PlanChoices& choices) {
  PENSTOCK_TRY(validate(request.workload));
  CHECK(choices.tile_elements.has_value());
  PENSTOCK_TRY_ASSIGN(fitted, fit_plan(request, choices));
  Plan plan = build_plan(request.workload, request.machine, std::move(fitted.tiles), fitted.sizes);
  plan.durability = request.durability.value_or(Durability{});
  plan.forward_in_steps = request.forward_in_steps;
  plan.budget_lines = std::move(fitted.lines);
  return plan;
}

std::vector<uint64_t> tile_sizes_worth_trying(const PlanRequest& request) {
  if (request.choices.tile_elements) return {*request.choices.tile_elements};
  const SmallestTiles smallest(request.workload);
  const uint64_t bytes_per_block = smallest.slot_bytes;
  const uint64_t all = request.workload.elements() / kBlockElements * bytes_per_block;
  const uint64_t slot_bytes = std::clamp(all / kTilesUsual, kSlotBytesUsual, kSlotBytesMost);
  const uint64_t windows = request.choices.window_tiles.value_or(windows_worth_trying(request.machine).front());
  // A window's tile and its gradient.
  const uint64_t bytes_per_window_block = windows * (bytes_per_block + smallest.gradient_bytes);
  std::vector<uint64_t> sizes;
  for (uint64_t blocks = std::max<uint64_t>(1, slot_bytes / bytes_per_block); blocks >= 1; blocks /= 2) {
    sizes.push_back(blocks * kBlockElements);
    const uint64_t saved = (blocks - blocks / 2) * bytes_per_window_block;
    if (smallest.count / blocks * book_bytes_per_tile(request) > saved) break;
  }
  return sizes;
}

Status validate(const PlanRequest& request) {
  PENSTOCK_TRY(validate(request.workload));
  if (request.workload.units.empty()) return Status(Code::kUsage, "plan: the model has no units");
  if (request.choices.window_tiles == 0u) return Status(Code::kUsage, "plan: window_tiles is 0", "use 1 or more");
  if (request.durability && request.durability->steps == 0) {
    return Status(Code::kUsage, "plan: durability every:0", "give every:1 or more");
  }
  return Status();
}

Result<Plan> make_plan(const PlanRequest& request) {
  PENSTOCK_TRY(validate(request));
  const std::vector<uint64_t> sizes = tile_sizes_worth_trying(request);
  const std::vector<uint32_t> windows = request.choices.window_tiles
                                            ? std::vector<uint32_t>{*request.choices.window_tiles}
                                            : windows_worth_trying(request.machine);
  auto with = [&](uint32_t window, uint64_t tile_elements) {
    PlanChoices choices = request.choices;
    choices.tile_elements = tile_elements;
    choices.window_tiles = window;
    return choices;
  };
  // Where nothing fits in the fewest windows, those between need not be tried.
  auto refused_in_fewest = [&] {
    Status refusal;
    for (uint64_t tile_elements : sizes) {
      refusal = budget_lines(request, with(windows.back(), tile_elements)).status();
      if (refusal.ok()) break;
    }
    return refusal;
  };
  Status refusal;
  for (uint32_t window : windows) {
    for (uint64_t tile_elements : sizes) {
      Result<Plan> plan = make_plan_as_chosen(request, with(window, tile_elements));
      if (plan.ok()) return plan;
      if (refusal.ok()) {
        const Status least = refused_in_fewest();
        if (!least.ok()) return smallest_refused(request, least);
      }
      refusal = plan.status();
    }
  }
  return smallest_refused(request, refusal);
}

}  // namespace penstock
