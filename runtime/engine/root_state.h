// What the engine itself keeps in a root, beside the trainer's state.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tiering/hyper.h"
#include "tiering/store/root_payload.h"
#include "tiering/unit.h"

namespace penstock::engine {

// How many updates each parameter has had: the step count that its next update's coefficients are made of. One whose
// gradient is absent from a step is not counted in it, as in PyTorch.
struct UnitCounts {
  uint64_t unnamed = 0;              // of the elements that no parameter names
  std::vector<uint64_t> parameters;  // in the unit's order

  bool operator==(const UnitCounts&) const = default;
};

// No update count may exceed it; those up to it are exact in double.
constexpr uint64_t kUpdateCountMax = uint64_t{1} << 52;

struct EngineState {
  uint64_t updates = 0;            // steps that were not skipped
  std::vector<UnitCounts> counts;  // by unit
  // What has led here, as one number: the steps' gradients and hyper-parameters, which several ranks have alike, and
  // what was written between steps, which one that is alone may do. 0: before the first of them, and in roots that are
  // older than it.
  uint64_t course = 0;

  bool operator==(const EngineState&) const = default;
};

// Of a model in which every parameter has had each of the updates.
EngineState engine_state(const Workload& workload, uint64_t updates = 0);

// The course once a step of these gradients, whose squares have that sum, has been taken.
uint64_t course_after(uint64_t course, double sum_of_squares, double loss_scale, const std::vector<Hyper>& groups);
uint64_t hash_of(const std::vector<Hyper>& groups);
// Once the values have been written where `what` says.
uint64_t course_after_write(uint64_t course, std::span<const uint64_t> what, std::span<const std::byte> values);
// That of a root, whatever the model.
uint64_t course_of(const RootPayload& payload);

// RootPayload::engine_state. Short where every parameter has had each of the updates.
std::string encode(const EngineState& state);
// Refuses what encode() did not write of this model, more updates than steps, and counts above kUpdateCountMax.
Result<EngineState> parse_engine_state(const RootPayload& payload, const Workload& workload);

// The room that a new store of this workload gets for it: a count for every parameter, and one for every unit.
StateCapacity state_capacity_of(const Workload& workload);

}  // namespace penstock::engine
