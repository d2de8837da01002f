// The planner: from sizes, budgets and measured rates to a Plan. A pure function; the same request gives the same plan.
#pragma once

#include <optional>

#include "tiering/plan/machine_profile.h"
#include "tiering/plan/plan.h"

namespace penstock {

struct Budgets {
  uint64_t device_bytes = 0;
  uint64_t host_bytes = 0;
  uint64_t nvme_bytes = std::numeric_limits<uint64_t>::max();
};

// What an engine's threads and rings take besides what is planned: a part of PlanRequest::process_bytes.
constexpr uint64_t kEngineOverheadBytes = 12 * kMiB;

enum class WeightTier : uint8_t { automatic, host, nvme };

// What the user, a test or a benchmark wants to fix. Everything left empty is the planner's choice.
struct PlanChoices {
  std::optional<uint64_t> tile_elements;
  std::optional<uint32_t> window_tiles;
  // Besides, for what a step that waits for its verdict reads ahead of it. Empty: none, and what a search finds spare.
  std::optional<uint32_t> ahead_window_tiles;
  std::optional<double> host_state_share;  // share of the tiles whose state rests in host memory
  // Share of the units that may rest on the device (may_rest_on_device()) that do, weights and state: those whose
  // gradients come last first, because nothing hides their update. Empty: none, and the one that is fastest in a search
  // that may choose where weights rest.
  std::optional<double> device_share;
  WeightTier weights = WeightTier::automatic;
  // Share of each unit's tiles on the drives that are updated behind all others, ahead of the next forward instead of
  // beside backward, which moves the more. Empty: none, and the one that is fastest in a search.
  std::optional<double> deferred_share;
  std::optional<double> retained_host_share;  // share of the tiles whose gradient waits in host memory; the rest: nvme
  std::optional<uint32_t> micro_batch_group;
  std::optional<ActivationChoice> activations;
  // Share of the uses that keep their activations where the others are computed again or offloaded.
  std::optional<double> keep_share;
  std::optional<double> offload_host_share;  // of a device's uses that offload: to host memory; the rest to nvme
};

struct PlanRequest {
  Workload workload;
  MachineProfile machine;
  Budgets budgets;
  std::optional<Durability> durability = Durability{};  // empty: choose_plan() says (plan_search.h)
  PlanChoices choices;
  // Whether the trainer hands activations to the engine (put and get), which keeps them in its own memory. Else they
  // stay in the trainer's, which the plan only counts, and cannot be offloaded.
  bool stores_activations = true;
  // Whether forward passes that change nothing may come within a step too, for evaluation between micro-batches: the
  // plan keeps room for the weights of the largest use.
  bool forward_in_steps = false;
  // Taken from the host budget before anything else: the program and its libraries.
  uint64_t process_bytes = 0;
  // Slots per tile on the drives; 0: two, or three where durability is relaxed and updates are speculative.
  uint32_t slots = 0;
};

// Refuses a request that has no meaning, whatever the budgets.
Status validate(const PlanRequest& request);

// Of the choices that are left open, those that suit the drives and fit, without looking at times (plan_search.h does).
// Refuses with needed and available bytes, by tier, when the budgets cannot hold even the smallest plan.
Result<Plan> make_plan(const PlanRequest& request);

// The plan that make_plan would make with every choice given: no search.
Result<Plan> make_plan_as_chosen(const PlanRequest& request, const PlanChoices& choices);

// The usual size first, then smaller ones as long as they can save memory: small tiles make small windows, but each has
// its lines in the plan's books.
std::vector<uint64_t> tile_sizes_worth_trying(const PlanRequest& request);

uint32_t slots_per_tile(const PlanRequest& request);

// What a plan with these choices would take of each tier, without making it. REQUIRES: choices.tile_elements.
Result<std::vector<BudgetLine>> budget_lines(const PlanRequest& request, const PlanChoices& choices);

}  // namespace penstock
