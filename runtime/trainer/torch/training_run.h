// TrainingRun trains one model over a store: what `penstock train` does, step by step.
#pragma once

#include <functional>
#include <memory>

#include "runtime/trainer/engine_link.h"
#include "runtime/trainer/step_engine.h"
#include "runtime/trainer/torch/generation.h"
#include "runtime/trainer/torch/train_step.h"
#include "runtime/trainer/training_settings.h"

namespace penstock::trainer {

// What a step of these settings needs besides the plan, measured by a dry step. Fills in the uses' times and
// activations, and what the process takes with all that LibTorch allocates.
Status measure_step(TrainingSettings& settings);

class TrainingRun {
 public:
  // `settings` outlive it, and so do `ranks`, where there are several: then all of them call all of this together.
  static Result<std::unique_ptr<TrainingRun>> open(const TrainingSettings& settings, engine::Ranks* ranks = nullptr);
  ~TrainingRun();

  struct Step {
    engine::StepReport report;  // bytes are those of all ranks
    double loss = 0;
    double learning_rate = 0;
    double loss_scale = 1;
  };
  Result<Step> step();
  // Whether any rank says so.
  Result<bool> any(bool here);

  // The loss of what is held out, between steps; changes nothing. REQUIRES: something is.
  Result<StepLoss> evaluate();

  // The answers to the settings' prompts, between steps; changes nothing. `number` names the draws: one step's are not
  // another's. REQUIRES: there are prompts, and one rank.
  Result<std::vector<Continuation>> answer(uint64_t number);

  StepEngine& engine() { return *engine_; }
  // The next step's root has it, and open() finds it there.
  PatienceState& patience() { return patience_; }

 private:
  TrainingRun(const TrainingSettings& settings, std::unique_ptr<StepEngine> engine);
  Status restore();

  const TrainingSettings& settings_;
  std::unique_ptr<StepEngine> engine_;
  EngineLink link_;
  LossScaler scaler_;
  PatienceState patience_;
  TrainStep step_;
};

// A rank's micro-batches of a step: a function of seed, step, rank and their number alone. Which samples a step has
// does not depend on the number of ranks.
std::vector<MicroBatch> batches_of(const TrainingSettings& settings, uint64_t step);

// What ranks add up, in their order.
struct Added {
  StepLoss loss;
  uint64_t read_bytes = 0, written_bytes = 0;
};
Result<Added> added_over_ranks(const TrainingSettings& settings, StepEngine& engine, const Added& mine);

// Of prompts that are computed at once.
uint64_t prompt_tokens_together(const TrainingSettings& settings);

// Micro-batches of one evaluation, and how many of them pass through a unit before the next is fetched.
uint64_t evaluated_micro_batches(const TrainingSettings& settings);
uint64_t evaluation_group(const TrainingSettings& settings);

}  // namespace penstock::trainer
