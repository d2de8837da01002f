// What a run's settings are computed on, and what a step takes there: found before there is a plan.
#pragma once

#include <memory>

#include "runtime/trainer/accelerator.h"
#include "runtime/trainer/training_settings.h"

namespace penstock::trainer {

// What these settings are computed on: the CPU where open_accelerator() was not called.
std::shared_ptr<Accelerator> accelerator_of(const TrainingSettings& settings);
// Opens what computes on the settings' device, and fills in its budget where that is left open: nearly all that is
// free. Refuses a budget that is more.
Status open_accelerator(TrainingSettings& settings);
// The part of it that knows no GPU: for an accelerator that is open, whose device has memory of its own.
Status give_budget(TrainingSettings& settings);

// What a step of these settings needs besides the plan, measured by a dry step. Fills in the uses' times and
// activations, and what the process takes with all that LibTorch allocates. On a device with memory of its own its
// budget is divided: a fixed share for LibTorch, the rest for the engine.
Status measure_step(TrainingSettings& settings);

}  // namespace penstock::trainer
