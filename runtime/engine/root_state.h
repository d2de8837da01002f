// What the engine itself keeps in a root, beside the trainer's state.
#pragma once

#include <string>

#include "tiering/store/root_payload.h"
#include "tiering/unit.h"

namespace penstock::engine {

struct EngineState {
  uint64_t updates = 0;  // steps that were not skipped: the optimizer's step count
};

// RootPayload::engine_state.
std::string encode(const EngineState& state);
// Refuses what encode() did not write, and more updates than steps.
Result<EngineState> parse_engine_state(const RootPayload& payload);

// The room that a new store of this workload gets for it: a count for every parameter.
StateCapacity state_capacity_of(const Workload& workload);

}  // namespace penstock::engine
