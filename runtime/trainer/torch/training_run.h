// TrainingRun trains one model over a store: what `penstock train` does, step by step. training_run_forward.cpp has
// what it computes between steps.
#pragma once

#include <functional>
#include <memory>

#include "runtime/engine/step_engine.h"
#include "runtime/trainer/engine_link.h"
#include "runtime/trainer/loss_event.h"
#include "runtime/trainer/torch/generation.h"
#include "runtime/trainer/torch/train_step.h"
#include "runtime/trainer/training_settings.h"

namespace penstock::trainer {

// The loss of what a set of data holds out.
struct SetLoss {
  std::string set;  // for a user: "a.txt"
  StepLoss loss;
};

class TrainingRun {
 public:
  // `settings` outlive it, and so do `ranks`, where there are several: then all of them call all of this together.
  static Result<std::unique_ptr<TrainingRun>> open(const TrainingSettings& settings, engine::Ranks* ranks = nullptr);
  ~TrainingRun();

  struct Step {
    engine::StepReport report;  // bytes are those of all ranks
    uint64_t batch = 0;         // in the order of samples
    double loss = 0;
    double learning_rate = 0;
    double loss_scale = 1;
    std::vector<LossEvent> events = {};  // of batches that were left out on the way to this one
    // What the rules about the loss end the run with: nothing was learnt, and there is no report.
    std::optional<LossEvent> ended_by = {};
  };
  // Learns from the next batch that the rules about the loss let pass. Which those are depends on the loss over all
  // ranks, so that all decide alike.
  Result<Step> step();
  // After a step that ended the run: makes the step before durable, and says why the run ends there.
  Status stop(const LossEvent& event);

  // What has been left out, and what rules about the loss have done: a run that goes back to an older root takes it
  // along.
  struct Experience {
    LeftOut left_out;
    LossRulesState rules;
  };
  Experience experience() const { return {left_out_, rules_state_}; }
  // Between steps. The losses that a spike is measured by stay those of the root.
  void take_along(Experience experience);
  // Whether any rank says so.
  Result<bool> any(bool here);

  // The loss of what each set holds out, between steps; changes nothing. REQUIRES: something is held out.
  Result<std::vector<SetLoss>> evaluate();

  // The answers to question_of() the settings, between steps; changes nothing. All ranks get all answers. REQUIRES:
  // there are prompts.
  Result<std::vector<Continuation>> answer(uint64_t number);

  // Between steps: what tensors, and plans that were looked at, have left free goes back to the system.
  void give_back_memory();

  engine::StepEngine& engine() { return *engine_; }
  // The next step's root has it, and open() finds it there.
  PatienceState& patience() { return patience_; }

 private:
  TrainingRun(const TrainingSettings& settings, std::unique_ptr<engine::StepEngine> engine);
  Status restore();

  // A batch that the step under way has computed, and not learnt from yet.
  struct Computed {
    uint64_t step = 0, batch = 0;
    double learning_rate = 0, loss_scale = 1;
    StepLoss loss = {};  // of all ranks
  };
  Result<Computed> compute();
  Result<LossTrouble> trouble_with(const Computed& computed);
  Result<Step> learn_from(const Computed& computed);
  LossEvent event_of(const Computed& computed, LossTrouble trouble) const;
  Status take_from_first_rank(std::span<int32_t> tokens);

  const TrainingSettings& settings_;
  std::shared_ptr<Accelerator> accelerator_;
  std::unique_ptr<engine::StepEngine> engine_;
  EngineLink link_;
  LossScaler scaler_;
  PatienceState patience_;
  LossRulesState rules_state_;
  Status discarded_;  // how the step that ended the run was given up
  LeftOut left_out_;  // by the config, and so far
  TrainStep step_;
};

// What ranks add up, in their order.
struct Added {
  StepLoss loss;
  uint64_t read_bytes = 0, written_bytes = 0;
};
Result<Added> added_over_ranks(const TrainingSettings& settings, engine::StepEngine& engine, const Added& mine);

// What the settings' prompts ask. `number` names the draws: one step's are not another's.
Question question_of(const TrainingSettings& settings, uint64_t number);

// Of prompts that are computed at once.
uint64_t prompt_tokens_together(const TrainingSettings& settings);

}  // namespace penstock::trainer
