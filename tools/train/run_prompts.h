// The prompts of a run: tokenised before it begins, answered as it goes on.
#pragma once

#include <vector>

#include "runtime/trainer/torch/generation.h"
#include "tools/penstock/verb.h"
#include "tools/train/settings_of_run.h"

namespace penstock::tools {

// Fills in the settings' prompts: by the tokenizer that the config names, the model's own, or byte by byte. Refuses
// prompts that the model cannot be asked. REQUIRES: the config has counts filled in.
Status find_prompts(TrainingSettings& settings);

// After measure_step(): refuses what is remembered of the prompts by its name, where the plan would fit without.
Status refuse_prompts_without_room(const TrainingSettings& settings);

// One object for each prompt, for the log.
Json answers_json(const TrainingSettings& settings, std::span<const trainer::Continuation> answers);
// For the terminal.
std::string answers_text(const TrainingSettings& settings, std::span<const trainer::Continuation> answers);

}  // namespace penstock::tools
