// A run's settings, made of its config, what its store has and where it runs.
#pragma once

#include <optional>

#include "runtime/trainer/training_settings.h"

namespace penstock::tools {

using trainer::TrainingSettings;

// `stored`: what the store has, if it is to be gone on with; where the config names no model, the store's is trained.
// `cuda_usable` as in choose_device().
Result<TrainingSettings> settings_of(const trainer::TrainConfig& config,
                                     const std::optional<trainer::TrainerState>& stored,
                                     const engine::RankPlace& place = {}, const trainer::CudaUsable& cuda_usable = {});

// Plans for the machine that drives were measured of, with the device that the config asks for.
void compute_on(const MachineProfile& machine, TrainingSettings& settings);

}  // namespace penstock::tools
