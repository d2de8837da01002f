// What Engine needs to take another plan between steps, and what it says of it. Pure but for the time that a search
// takes.
#pragma once

#include <optional>
#include <string>

#include "tiering/plan/plan_search.h"
#include "tiering/plan/rate_watch.h"

namespace penstock::engine {

// Of the arenas that a run has: a plan that comes later must fit.
struct ArenaRoom {
  uint64_t host_bytes = 0;
  uint64_t device_bytes = 0;  // 0: it computes in place
};

// The tiles are the store's: only a new store could have others.
PlanRequest with_tiles_of(PlanRequest request, uint64_t tile_elements, uint32_t slots);

// Refuses a plan that the executor does not carry out, before a step waits for it.
Status refuse_moves(const Plan& plan, bool has_device);
// EngineOptions::on_updated does not hear of tiles that a device updates: where it is left open, none does, and a plan
// that has some is refused.
PlanRequest with_updates_told(PlanRequest request);
Status refuse_untold_updates(const Plan& plan);

// Refuses a request for another model, state or durability than what a store and its run are for, with the first
// difference. Machine, budgets, choices, uses and micro-batches may differ.
Status same_model(const PlanRequest& here, const PlanRequest& there);

// The fastest plan whose arenas fit: where the budgets would allow larger ones, it is made for smaller budgets.
Result<ChosenPlan> choose_plan_within(PlanRequest request, const ArenaRoom& room);

// What is known of a plan's rates, and maybe another plan for them.
struct PlanAtRates {
  MachineProfile machine;
  double present_s = 0;  // a step of the present plan
  std::optional<ChosenPlan> better;
  std::string why;
};

// At `share` of the machine's drive rates: whether another plan is so much faster that the change pays. `request` has
// the tiles that the store has.
PlanAtRates look_for_better(const PlanRequest& request, Plan present, const ArenaRoom& room, const NewPlanRule& rule,
                            double share);

// What the drives are expected to give, in 10^9 B/s. 0: nobody knows.
double expected_gbps(const MachineProfile& machine, const Plan& plan, double read_share);

// "activations of 3 of 24 uses kept, micro-batches in groups of 4, 1.20 GiB at rest in host memory, 0.512 s a step";
// without rates no time is said.
std::string summary_of(const Plan& plan, double step_s);

}  // namespace penstock::engine
