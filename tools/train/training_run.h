// TrainingRun trains one model over a store: what `penstock train` does, step by step.
#pragma once

#include <functional>
#include <memory>

#include "runtime/trainer/engine_link.h"
#include "runtime/trainer/torch/train_step.h"
#include "tools/train/training_settings.h"

namespace penstock::tools {

// What a step of these settings needs besides the plan: measured by one step in memory of zeros. Fills in the uses'
// times, and what the process takes with all that LibTorch allocates.
Status measure_step(TrainingSettings& settings);

class TrainingRun {
 public:
  using Tick = std::function<Status(double share)>;

  // Weights come from the model's folder, or begin from scratch.
  static Status create(const TrainingSettings& settings, aio::CreateOptions::Existing existing, const Tick& tick);
  // `settings` outlive it.
  static Result<std::unique_ptr<TrainingRun>> open(const TrainingSettings& settings);

  struct Step {
    engine::StepReport report;
    double loss = 0;
    double learning_rate = 0;
  };
  Result<Step> step();

  engine::Engine& engine() { return *engine_; }

 private:
  TrainingRun(const TrainingSettings& settings, std::unique_ptr<engine::Engine> engine);

  const TrainingSettings& settings_;
  std::unique_ptr<engine::Engine> engine_;
  trainer::EngineLink link_;
  trainer::TrainStep step_;
};

// The micro-batches of a step: a function of seed and step alone.
std::vector<trainer::MicroBatch> batches_of(const TrainingSettings& settings, uint64_t step);

}  // namespace penstock::tools
