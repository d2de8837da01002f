// Snapshots are the steps that a run keeps as it goes on: every so many of them, and those with the best loss on what
// is held out.
#pragma once

#include <optional>
#include <string>

#include "runtime/engine/engine.h"
#include "runtime/engine/kept_steps.h"
#include "runtime/trainer/config/train_config.h"
#include "runtime/trainer/step_engine.h"

namespace penstock::tools {

class Snapshots {
 public:
  explicit Snapshots(const trainer::TrainConfig& config)
      : every_(config.keep_every), best_(config.keep_best), kept_(config.stores) {}

  // After a step; `loss`: of its evaluation. What was done, for the user; empty: nothing.
  Result<std::string> after(trainer::StepEngine& engine, uint64_t step, std::optional<double> loss);

 private:
  bool is_regular(uint64_t step) const { return every_ > 0 && step % every_ == 0; }

  const uint64_t every_, best_;
  engine::KeptSteps kept_;
};

}  // namespace penstock::tools
