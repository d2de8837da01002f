// The config that a run follows: where it comes from, how it differs from the one before, and where it is written down.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/trainer/training_settings.h"
#include "tools/penstock/train_flags.h"

namespace penstock::tools {

// The config that these flags ask for: of the file they name, of the store that is there, or the built-in one.
// `stored`: what the store has, if it is to be gone on with.
Result<trainer::TrainConfig> config_of(const TrainFlags& flags, const std::optional<trainer::TrainerState>& stored);

// What the run does otherwise than the one before it did, one line a key.
std::vector<std::string> changes_since(const trainer::TrainingSettings& settings, const trainer::TrainerState& stored);

// Writes the config that is followed into the run's folder, if there is one; it is made.
Status write_run_config(const trainer::TrainingSettings& settings);

}  // namespace penstock::tools
