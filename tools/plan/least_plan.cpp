#include "tools/plan/least_plan.h"

#include <algorithm>
#include <array>
#include <optional>

namespace penstock::tools {
namespace {

constexpr uint32_t kWindowTiles = 3;
constexpr uint64_t kUnbounded = std::numeric_limits<uint64_t>::max();

uint64_t short_of(const std::vector<BudgetLine>& lines, const Budgets& budgets, Tier tier) {
  const uint64_t needed = needed_bytes(lines, tier);
  return needed - std::min(needed, budget_of(budgets, tier));
}

// The smallest plan is one of these; which one depends on the model and on the tier that is short.
std::vector<PlanChoices> smallest_choices(const PlanRequest& request) {
  PlanChoices least = request.choices;
  if (!least.window_tiles) least.window_tiles = kWindowTiles;
  if (!least.host_state_share) least.host_state_share = 0;
  if (!least.retained_host_share) least.retained_host_share = 0;
  if (least.weights == WeightTier::automatic) least.weights = WeightTier::nvme;

  using enum ActivationChoice;
  const bool trains = request.workload.scope == StepScope::training;
  std::vector<ActivationChoice> activations = {recompute_offload, recompute};
  if (!request.machine.copies_to_device() || !trains) activations = {recompute};
  if (least.activations) activations = {*least.activations};
  std::vector<uint32_t> groups = {request.workload.micro_batches, 1};
  if (least.micro_batch_group) groups = {*least.micro_batch_group};
  if (groups.front() == groups.back()) groups.resize(1);
  std::vector<PlanChoices> all;
  for (uint64_t tile_elements : tile_sizes_worth_trying(request)) {
    for (ActivationChoice choice : activations) {
      for (uint32_t group : groups) {
        all.push_back(least);
        all.back().tile_elements = tile_elements;
        all.back().activations = choice;
        all.back().micro_batch_group = group;
      }
    }
  }
  return all;
}

}  // namespace

uint64_t budget_of(const Budgets& budgets, Tier tier) {
  return tier == Tier::device ? budgets.device_bytes : tier == Tier::host ? budgets.host_bytes : budgets.nvme_bytes;
}

Result<std::vector<BudgetLine>> least_plan(const PlanRequest& request) {
  PlanRequest unbounded = request;
  unbounded.budgets = {kUnbounded, kUnbounded, kUnbounded};
  std::optional<std::vector<BudgetLine>> best;
  std::array<uint64_t, 3> fewest{};  // by tier
  for (const PlanChoices& choices : smallest_choices(request)) {
    PENSTOCK_TRY_ASSIGN(lines, budget_lines(unbounded, choices));
    std::array<uint64_t, 3> missing{};
    for (size_t tier = 0; tier < missing.size(); ++tier) missing[tier] = short_of(lines, request.budgets, kTiers[tier]);
    if (best && missing >= fewest) continue;
    fewest = missing;
    best = std::move(lines);
  }
  return std::move(*best);
}

}  // namespace penstock::tools
