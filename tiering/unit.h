// What is trained: units, the parameters in them, and the uses that forward makes of them. Numbers and names, no
// memory.
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

// The piece of a model that is gathered at once. Lengths are those of this rank's shard.
struct Unit {
  std::string name;
  uint64_t elements = 0;
  bool trainable = true;
  // Of a frozen unit, what its weights rest in; they are computed with in the form's weight dtype, and so they are
  // read. None: they rest in that too.
  std::optional<BlockCode> code = {};
  uint32_t group = 0;                 // of hyper-parameters, where a parameter has none and where there is no parameter
  std::vector<Parameter> parameters;  // in the order of their elements
  // Its gradient comes parameter by parameter, in any order and among other units' parts. Then the plan has memory of
  // its own to gather it in, 4 B an element.
  bool gradient_in_parts = false;
};

// One place where forward passes through units; backward comes back through it if something there, or before it, is
// trained. Times and bytes are of one micro-batch.
struct Use {
  std::string name;
  // The units whose weights it uses, without repeats: a tied head has the embedding's besides its own. Each trainable
  // one gets a gradient of this use.
  std::vector<uint32_t> units;
  double forward_s = 0;
  double backward_s = 0;          // without recomputation
  uint64_t activation_bytes = 0;  // what backward needs of forward, if it is kept; each piece rounded up to 256 B
  uint64_t boundary_bytes = 0;    // what recomputation needs instead: the input
  // What is handed over in its backward stays as it is until release() of that pass returns. Computed in host memory,
  // the last contribution to a unit's gradient then goes from there to where the update finds it, without a copy in
  // between.
  bool gradients_stay = false;
};

// What may take a step's updates back once its gradients are known.
struct Clipping {
  double norm = 0;              // of all gradients together, at most; 0: they are not clipped
  bool skips_overflow = false;  // a step whose gradients are not finite changes nothing
  double strike_share = 0;      // expected share of steps that clip or overflow; for forecasts

  // Whether a step's verdict may take updates back.
  bool may_take_back() const { return norm > 0 || skips_overflow; }
};

// What ranks send one another in codes, in blocks of kCodeBlockElements that are counted from a unit's first element:
// fewer bytes, and other bits than without. Masters and sums stay exact.
struct RankCodes {
  bool weights = false;         // that are gathered, in int8: every rank computes with what the codes stand for
  bool frozen_weights = false;  // those of frozen units alone
  bool gradients = false;       // of each rank, in int4, on their way to the rank that adds up

  bool operator==(const RankCodes&) const = default;
  bool any() const { return *this != RankCodes(); }
};

enum class StepScope : uint8_t { update_only, training };

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
  std::vector<Unit> units;  // in the order in which forward first uses them
  std::vector<Use> uses;    // in forward order; none where only updates are planned: each unit then has one gradient
  StateForm form;
  StepScope scope = StepScope::update_only;
  uint32_t micro_batches = 1;
  // How many ranks have all of the model together: of each unit, this one has its shard.
  uint32_t ranks = 1;
  // How many such groups of ranks there are. Each has all of the model, and all add up gradients together.
  uint32_t groups = 1;
  // How many ranks a node has, neighbours; 0: all. What the others have comes over the network. Divides `ranks`, or is
  // divided by it.
  uint32_t node_ranks = 0;
  // Whether what was gathered stays until the step ends (ZeRO's stages 1 and 2), or is gathered for each pass (stage
  // 3).
  bool keeps_weights = false;
  RankCodes codes = {};
  Clipping clipping;
  // Where backward ends, where that is not at the first use that trains: one rank's shards may have no trained unit of
  // a use that trains.
  std::optional<uint32_t> last_backward_use = {};

  uint64_t elements() const {
    uint64_t sum = 0;
    for (const Unit& unit : units) sum += unit.elements;
    return sum;
  }
};

// One use for each unit, of no known time: a model that is a chain of its units.
std::vector<Use> uses_in_turn(const std::vector<Unit>& units);

// The uses that give the unit a gradient, in forward order; where the workload has none, the unit's own number.
std::vector<uint32_t> uses_of(const Workload& workload, uint32_t unit);
uint32_t count_uses_of(const Workload& workload, uint32_t unit);

// The first use of a trainable unit. Backward ends there: it does not come back through the uses before it. How many
// uses there are, where nothing is trained.
uint32_t first_trained_use(const Workload& workload);

// Refuses a form that has no meaning, a use of no unit, of one that does not exist or of one twice, a training pass
// without uses, codes of units that are trained or that nobody dequantises, and parameters that are empty, overlap,
// leave their unit, or begin where none may: at no multiple of kParameterAlignmentElements, or, in another group than
// what is before, inside a block of int8 moments, which has one scale.
Status validate(const Workload& workload);

// A run of a unit's elements that one parameter has, the padding behind it included, or that no parameter names: from
// the end of the run before it, or the unit's first.
struct ParameterRun {
  std::optional<uint32_t> parameter;  // its number in the unit
  uint32_t group = 0;
  uint64_t end_element = 0;

  bool operator==(const ParameterRun&) const = default;
};

// All of the unit's elements. REQUIRES: validate() accepts the workload that the unit is of.
std::vector<ParameterRun> parameter_runs(const Unit& unit, const StateForm& form);

// A run of a unit's elements that are in one group: from the end of the run before it, or the unit's first.
struct GroupRun {
  uint32_t group = 0;
  uint64_t end_element = 0;

  bool operator==(const GroupRun&) const = default;
};

// parameter_runs() in as few runs as there can be.
std::vector<GroupRun> group_runs(const Unit& unit, const StateForm& form);

}  // namespace penstock
