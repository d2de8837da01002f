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

// The stores of the run whose config lies in that folder; none where there is none.
std::vector<std::string> stores_of_folder(const std::string& folder);

// Whether it is a model's, as Hugging Face has it, and no run's.
bool is_models_config(const std::string& path);

}  // namespace penstock::tools
