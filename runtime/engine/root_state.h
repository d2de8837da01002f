// What the engine keeps in a root besides the trainer's own state.
#pragma once

#include "runtime/engine/engine.h"
#include "tiering/store/root_record.h"

namespace penstock::engine {

struct RootState {
  uint64_t updates = 0;  // steps that were not skipped: the optimizer's step count
  StepState state;
};

RootPayload root_payload(RootState state, uint64_t step, double loss_scale, const std::string& config_hash);
// Refuses more than a root holds.
Status validate(const RootPayload& payload);
Result<RootState> parse_root_state(const RootPayload& payload);

}  // namespace penstock::engine
