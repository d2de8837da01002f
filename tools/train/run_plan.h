// RunPlan tells programs that look at a run what plan its steps follow: plan.json in the run's folder, with what each
// tier holds, how long each lane is planned to be busy, what the drives endure, and what would make a step faster.
#pragma once

#include <optional>
#include <string>

#include "runtime/engine/step_engine.h"
#include "tools/train/settings_of_run.h"

namespace penstock::tools {

class RunPlan {
 public:
  // `settings` outlive it. An empty folder gets nothing.
  RunPlan(const TrainingSettings& settings, std::string folder) : settings_(settings), folder_(std::move(folder)) {}

  // What the engine follows from now on. Advice takes at most a hundredth of the time that the run is predicted to
  // take; what is left out then is said.
  Status write(const engine::StepEngine& engine);
  // The same where the engine has made a new plan on its way: by rates that are its own, so that lanes and advice are
  // left out.
  Status write_new(const engine::StepEngine& engine);

 private:
  Status keep(const std::string& content) const;

  const TrainingSettings& settings_;
  std::string folder_;
};

// What the plan was asked for: of a rank, for its shards.
Result<PlanRequest> request_of(const TrainingSettings& settings);

// Seconds that a step's passes compute by the plan, recomputation included.
double compute_s(const Plan& plan);

}  // namespace penstock::tools
