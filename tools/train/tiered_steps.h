// The first steps of a run, by the tiers, on a store that is made for them: what a plain loop is compared with.
#pragma once

#include "runtime/trainer/torch/training_run.h"
#include "tools/nvme/job.h"
#include "tools/train/settings_of_run.h"

namespace penstock::tools {

struct TieredSteps {
  std::unique_ptr<trainer::TrainingRun> run;
  std::vector<double> losses;
  uint64_t struck = 0, skipped = 0;  // steps
};

// Evaluates in between as the config says. Replaces what is in the store's folders. `settings` outlive the run.
Result<TieredSteps> take_tiered_steps(const TrainingSettings& settings, uint64_t steps, const Tick& tick,
                                      engine::Ranks* ranks = nullptr);

}  // namespace penstock::tools
