// Of a run's settings: the samples that each step and each evaluation computes, and the choices that they are computed
// by.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/trainer/batch.h"
#include "runtime/trainer/torch/train_step.h"
#include "runtime/trainer/training_settings.h"

namespace penstock::trainer {

ComputeChoices choices_of(const TrainingSettings& settings);

// A rank's micro-batches of a step's batch: a function of seed, rank and their numbers alone. Which samples a batch has
// does not depend on the number of ranks.
std::vector<MicroBatch> micro_batches_of(const TrainingSettings& settings, uint64_t batch);

// The micro-batches of one evaluation, set by set, and how many of them pass through a unit before the next is fetched.
struct EvaluatedBatch {
  size_t set = 0;  // of those that hold something out
  uint64_t first = 0, count = 0;
};
std::vector<EvaluatedBatch> evaluated_batches(const TrainingSettings& settings);
uint64_t evaluation_group(const TrainingSettings& settings);

}  // namespace penstock::trainer
