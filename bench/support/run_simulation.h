// What the simulator has to know about the next steps of a synthetic run.
#pragma once

#include "tiering/plan/simulator.h"
#include "tools/update/update_run.h"

namespace penstock::bench {

// Of the run's next `steps` steps: which strike and how early that is known, which speculate, and how long the trainer
// takes to hand a gradient over. `opened_at` is the step that the engine was opened at: its policy knows those since.
SimulationOptions simulation_options(const tools::UpdateRun& run, const Plan& plan, uint64_t opened_at, uint64_t done,
                                     uint32_t steps);

}  // namespace penstock::bench
