// Snapshots are the steps that a run keeps as it goes on: every so many of them, and those with the best loss on what
// is held out.
#pragma once

#include <optional>
#include <string>

#include "runtime/engine/ranks/kept_together.h"
#include "runtime/engine/step_engine.h"
#include "runtime/trainer/config/train_config.h"
#include "tools/train/settings_of_run.h"

namespace penstock::tools {

// Of the run's store or, where there are several `ranks`, of those of all of them.
engine::KeptTogether kept_of(const TrainingSettings& settings, engine::Ranks* ranks);

// Of several ranks all call all of it, together.
class Snapshots {
 public:
  Snapshots(const TrainingSettings& settings, engine::Ranks* ranks)
      : every_(settings.config.keep_every), best_(settings.config.keep_best), kept_(kept_of(settings, ranks)) {}

  // Whether it stays whatever its loss.
  bool is_regular(uint64_t step) const { return every_ > 0 && step > 0 && step % every_ == 0; }
  // Before the first step of a run that is to go back to one, where nothing is kept yet: keeps step 0.
  Result<std::string> before_first(engine::StepEngine& engine);
  // After a step; `loss`: of its evaluation. What was done, for the user; empty: nothing.
  Result<std::string> after(engine::StepEngine& engine, uint64_t step, std::optional<double> loss);

 private:
  Result<std::string> keep(engine::StepEngine& engine, uint64_t step, std::optional<double> loss);

  const uint64_t every_, best_;
  engine::KeptTogether kept_;
};

}  // namespace penstock::tools
