// TrainerState is what a run keeps in each of its roots, beside the tiles: all that another run on the same store needs
// to go on, to export it or to ask nothing.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/trainer/left_out.h"
#include "runtime/trainer/loss_rules.h"
#include "runtime/trainer/loss_scaler.h"
#include "runtime/trainer/patience.h"
#include "tiering/status.h"

namespace penstock::trainer {

struct TrainerState {
  std::string config;        // effective_json()
  std::string model_json;    // config.json of the model
  std::string model_folder;  // where weights and tokenizer came from; empty: it began from scratch
  uint64_t samples = 0;      // drawn so far, or left out
  uint64_t updates = 0;      // steps before this one that were not skipped
  LossScaleState scale;      // of this step; whether it overflowed is known when it is read, not when it is written

  PatienceState patience = {};  // as this step began
  LeftOut left_out = {};        // of the batches up to this step's
  LossRulesState rules = {};    // with this step's loss

  bool operator==(const TrainerState&) const = default;
};

std::string encode(const TrainerState& state);
// Refuses what encode() did not write.
Result<TrainerState> parse_trainer_state(const std::string& bytes);

}  // namespace penstock::trainer
