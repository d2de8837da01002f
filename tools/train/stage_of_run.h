// The ZeRO stage of a run whose config says none: its ranks choose it together by what `penstock plan` chooses by, for
// what each of them was measured to be. It goes into the config that is followed, and so into every root: a run that
// goes on keeps it.
#pragma once

#include <optional>
#include <string>

#include "runtime/engine/ranks/ranks.h"
#include "runtime/trainer/trainer_state.h"
#include "tools/train/settings_of_run.h"

namespace penstock::tools {

// Where the config says no stage, that of the store is gone on with.
Status keep_stage(const std::optional<trainer::TrainerState>& stored, trainer::TrainConfig& config);

bool leaves_stage_open(const TrainingSettings& settings);

// REQUIRES: leaves_stage_open(), and the step is measured; all ranks together. `has_store`: its shards cannot be cut
// anew. What was chosen and why, for the user. Where no stage fits, the one that takes the least memory is chosen, and
// opening refuses it.
Result<std::string> choose_stage(TrainingSettings& settings, bool has_store, engine::Ranks& ranks);

}  // namespace penstock::tools
