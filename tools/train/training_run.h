// TrainingRun trains one model over a store: what `penstock train` does, step by step.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/trainer/config/schedule.h"
#include "runtime/trainer/data/samples.h"
#include "runtime/trainer/engine_link.h"
#include "runtime/trainer/torch/train_step.h"

namespace penstock::tools {

struct TrainingSettings {
  trainer::Model model;
  trainer::Samples samples;
  trainer::Schedule schedule;
  engine::EngineOptions engine;  // the model's units and uses are filled in
  uint64_t sequence = 0;
  uint64_t sequences = 0;  // of a micro-batch
  uint64_t micro_batches = 1;
  ActivationChoice activations = ActivationChoice::recompute;
  double learning_rate = 1e-3;
  double weight_decay = 0;
  uint64_t seed = 0;

  uint64_t tokens_of_step() const { return sequence * sequences * micro_batches; }
};

// What a step of these settings needs besides the plan: measured by one step in memory of zeros. Fills in the uses'
// times, and what the process takes with all that LibTorch allocates.
Status measure_step(TrainingSettings& settings);

class TrainingRun {
 public:
  using Tick = std::function<Status(double share)>;

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
// Of hyper-parameters: what decays, and what does not.
std::vector<Hyper> groups_of(const TrainingSettings& settings, uint64_t step);

}  // namespace penstock::tools
