// What is trained: units, the parameters in them, and how one training step uses them. Numbers and names, no memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tiering/state_layout.h"

namespace penstock {

// Where parameters start: at multiples of 256 B of the unit's 16-bit buffer.
constexpr uint64_t kParameterAlignmentElements = 128;

// A named run of a unit's elements.
struct Parameter {
  std::string name;
  uint64_t first_element = 0;
  uint64_t elements = 0;
  std::optional<uint32_t> group = {};  // of hyper-parameters; empty: its unit's. Not stored: every run may have others
};

// The piece of a model that is gathered at once. Lengths are those of this rank's shard; times are of one micro-batch.
struct Unit {
  std::string name;
  uint64_t elements = 0;
  bool trainable = true;
  uint32_t group = 0;                 // of hyper-parameters, where a parameter has none and where there is no parameter
  uint32_t uses = 1;                  // gradients per micro-batch: more than one for a tied or reused unit
  std::vector<Parameter> parameters;  // in the order of their elements
  // An earlier unit whose weights it is computed with besides its own: a tied head has the embedding's.
  std::optional<uint32_t> also_uses = {};

  double forward_s = 0;           // compute; 0 where only the update is planned
  double backward_s = 0;          // without recomputation
  uint64_t activation_bytes = 0;  // what backward needs of forward, if it is kept
  uint64_t boundary_bytes = 0;    // what recomputation needs instead: the unit's input
};

// How the gradients of one step may strike: what speculation is planned against.
struct Clipping {
  bool on = false;
  double strike_share = 0;  // expected share of steps that clip or overflow
};

enum class Pass : uint8_t { update_only, training };

// What backward needs of forward. keep: all of it stays where it was computed. recompute: only each unit's input stays.
// offload: all of it waits in host memory; recompute_offload: only the inputs do.
enum class ActivationChoice : uint8_t { keep, recompute, offload, recompute_offload };

constexpr bool recomputes(ActivationChoice choice) {
  return choice == ActivationChoice::recompute || choice == ActivationChoice::recompute_offload;
}
constexpr bool offloads(ActivationChoice choice) {
  return choice == ActivationChoice::offload || choice == ActivationChoice::recompute_offload;
}

struct Workload {
  std::vector<Unit> units;  // in forward order
  StateForm form;
  Pass pass = Pass::update_only;
  uint32_t micro_batches = 1;
  uint32_t ranks = 1;
  Clipping clipping;

  uint64_t elements() const {
    uint64_t sum = 0;
    for (const Unit& unit : units) sum += unit.elements;
    return sum;
  }
};

// Refuses a form that has no meaning, and parameters that are empty, overlap, leave their unit, or begin where none
// may: at no multiple of kParameterAlignmentElements, or, in another group than what is before, inside a block of int8
// moments, which has one scale.
Status validate(const Workload& workload);

// A run of a unit's elements that are in one group: from the end of the run before it, or the unit's first.
struct GroupRun {
  uint32_t group = 0;
  uint64_t end_element = 0;

  bool operator==(const GroupRun&) const = default;
};

// All of the unit's elements, in as few runs as there can be. The padding behind a parameter is in its group.
// REQUIRES: validate() accepts the workload that the unit is of.
std::vector<GroupRun> group_runs(const Unit& unit, const StateForm& form);

// The fp32 sum of the largest gradient that has several contributions; 0 if none has.
constexpr uint64_t accumulator_bytes(const Workload& workload) {
  uint64_t most = 0;
  for (const Unit& unit : workload.units) {
    bool adds_up = unit.trainable && workload.micro_batches * unit.uses > 1;
    if (adds_up && unit.elements * 4 > most) most = round_up(unit.elements * 4, kSegmentAlignmentBytes);
  }
  return most;
}

}  // namespace penstock
