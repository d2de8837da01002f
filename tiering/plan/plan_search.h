// The one way to a plan: what a forecast predicts is what an engine with the same request runs. A pure function, as
// the planner is.
#pragma once

#include "tiering/plan/planner.h"
#include "tiering/plan/simulator.h"

namespace penstock {

struct ChosenPlan {
  Plan plan;
  uint32_t slots = 2;  // a tile, of the store
  // Steps that are all durable, and steps none of which is: what rests in host memory is written through by durable
  // ones only. Where the plan is durable each step, the same.
  Simulation durable;
  Simulation other;

  // Of many steps, on average.
  double step_s() const;
};

// Of the plans that the request leaves open, the one that is fastest in virtual time; of equally fast ones, the one
// that writes the fewest bytes to the drives, then reads the fewest, then takes the least memory. Where
// steps may wait for their verdict, what is then left of the host budget goes to windows, for state that they read
// meanwhile. Refuses with needed and available bytes, by tier, where none fits. Tries some tens of plans in sketches of
// few, large tiles and the best in full, so that it takes a second or two for hundreds of units.
Result<ChosenPlan> choose_plan(const PlanRequest& request, const SimulationOptions& options = {});

// Of a plan that was made, at these rates: what ChosenPlan::step_s() says of one that is chosen by them.
double predicted_step_s(Plan plan, const MachineProfile& machine);

// The same, and the drives' bytes, of steps that all end with that verdict, which is not to confirm; updated ahead of
// it or not. 0 where rates are unknown.
struct PredictedSteps {
  double step_s = 0;
  double read_bytes = 0, written_bytes = 0, found_bytes = 0;  // as of SimulatedStep
};
PredictedSteps predicted_taken_back(const Plan& plan, const MachineProfile& machine, Verdict verdict, bool speculate);

// How often what rests in host memory is made durable where the request leaves it open: so often that it costs at most
// 3 % of the steps' time. `durable_s`, `other_s`: of a step that is durable, and of one that is not.
Durability usual_durability(double durable_s, double other_s);

}  // namespace penstock
