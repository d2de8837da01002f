// Snapshots are the steps that a run keeps as it goes on: every so many of them, and those with the best loss on what
// is held out.
#pragma once

#include <optional>
#include <string>

#include "runtime/engine/engine.h"
#include "runtime/engine/kept_steps.h"
#include "runtime/engine/step_engine.h"
#include "runtime/trainer/config/train_config.h"

namespace penstock::tools {

class Snapshots {
 public:
  explicit Snapshots(const trainer::TrainConfig& config)
      : every_(config.keep_every), best_(config.keep_best), kept_(config.stores) {}

  // Whether it stays whatever its loss.
  bool is_regular(uint64_t step) const { return every_ > 0 && step > 0 && step % every_ == 0; }
  // Before the first step of a run that is to go back to one, where nothing is kept yet: keeps step 0.
  Result<std::string> before_first(engine::StepEngine& engine);
  // After a step; `loss`: of its evaluation. What was done, for the user; empty: nothing.
  Result<std::string> after(engine::StepEngine& engine, uint64_t step, std::optional<double> loss);

 private:
  Result<std::string> keep(engine::StepEngine& engine, uint64_t step, std::optional<double> loss);

  const uint64_t every_, best_;
  engine::KeptSteps kept_;
};

}  // namespace penstock::tools
