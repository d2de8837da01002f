// What `train` and `verify` begin with: a run as its flags ask for it, made ready and measured.
#pragma once

#include "runtime/trainer/torch/training_run.h"
#include "tools/penstock/command.h"
#include "tools/penstock/nvme_common.h"
#include "tools/train/settings_of_run.h"

namespace penstock::tools {

// A run as its flags ask for it, and what its store has of it.
struct Prepared {
  TrainingSettings settings;
  std::optional<trainer::TrainerState> stored;
};

Result<Prepared> prepare(const TrainFlags& flags);

// Fills in the rates of the store's drives, and what a step takes beside the plan.
Status measure(Session& session, TrainingSettings& settings);

// The verb `verify`, of a training run.
Verb verify_training_verb();

}  // namespace penstock::tools
