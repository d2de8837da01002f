// Of the plans that a request leaves open, the one that is fastest in virtual time. A pure function, as the planner is.
#pragma once

#include "tiering/plan/planner.h"
#include "tiering/plan/simulator.h"

namespace penstock {

struct PredictedPlan {
  Plan plan;
  Simulation simulation;
};

// Tries what becomes of the activations, host memory with and without state that rests in it, and smaller groups of
// micro-batches where all at once do not fit.
Result<PredictedPlan> fastest_plan(const PlanRequest& request, const SimulationOptions& options = {});

// A step's seconds where it is durable, and where it is not: what rests in host memory is written through by durable
// steps only.
struct DurabilityCost {
  double durable_s = 0;
  double other_s = 0;

  double extra_s() const { return durable_s > other_s ? durable_s - other_s : 0; }
  // Durable after as many steps as make it cost at most 3 % of their time.
  Durability usual() const;
};
DurabilityCost durability_cost(Plan plan, const MachineProfile& machine, SimulationOptions options);

// The request with its durability decided where it is open, among those that its slots and budgets allow.
PlanRequest decide_durability(PlanRequest request);

}  // namespace penstock
