// Of the plans that a request leaves open, the one that is fastest in virtual time. A pure function, as the planner is.
#pragma once

#include "tiering/planner.h"
#include "tiering/simulator.h"

namespace penstock {

struct PredictedPlan {
  Plan plan;
  Simulation simulation;
};

// Tries what becomes of the activations, and smaller groups of micro-batches where all at once do not fit.
Result<PredictedPlan> fastest_plan(const PlanRequest& request, const SimulationOptions& options = {});

}  // namespace penstock
