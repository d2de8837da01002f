// The rule about the loss that goes back to a snapshot.
#pragma once

#include <memory>

#include "runtime/trainer/loss_event.h"
#include "runtime/trainer/torch/training_run.h"
#include "tools/penstock/verb.h"
#include "tools/train/settings_of_run.h"

namespace penstock::tools {

// Takes the store back to its newest snapshot, and goes on from there without all batches since, up to the event's:
// what made the loss go wrong may be what was learnt before it. `event` is told of both.
//
// A kill leaves a run that either knows nothing of it yet, meets the same batch again and goes back as this one did, or
// knows all of it: the next step's root has it. Several ranks go back together.
Result<std::unique_ptr<trainer::TrainingRun>> roll_back(Session& session, const TrainingSettings& settings,
                                                        engine::Ranks* ranks, std::unique_ptr<trainer::TrainingRun> run,
                                                        trainer::LossEvent& event);

}  // namespace penstock::tools
