// GradientIntake turns what a trainer hands over into finished gradients: each use's added up in fp32 by micro-batch
// index, then the uses' sums in forward order, rounded once, and measured block by block. Of what there is but one
// contribution to, nothing is added up: see sum_dtype().
//
// The last contribution to a gradient stays where it was given, if the workload says that it may, until finish() has
// joined it to the others.
//
// A contribution is a whole unit's gradient of one use and micro-batch, or parts of it in any order. The bits depend
// neither on tiles nor on parts: everything is element by element, and blocks of the norm are counted from the unit's
// first element. The work is shared between the caller and the update workers.
//
// Used by one thread at a time.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpu_optim/gradient.h"
#include "cpu_optim/update_workers.h"
#include "tiering/plan/sum_layout.h"
#include "tiering/unit.h"

namespace penstock::engine {

class GradientIntake {
 public:
  class Adder;
  // All that is named outlives it; `sums` is the memory that `layout` is of.
  GradientIntake(const Workload& workload, const SumLayout& layout, std::span<std::byte> sums,
                 cpu_optim::UpdateWorkers& workers);
  // Adds up by `adder`, on a device; nothing is finished here then.
  GradientIntake(const Workload& workload, Adder& adder, cpu_optim::UpdateWorkers& workers)
      : GradientIntake(workload, &adder, workers) {}

  void begin(uint32_t micro_batches);

  struct Part {
    uint32_t unit = 0;
    uint32_t use = 0;
    uint32_t micro_batch = 0;
    uint64_t first_element = 0;
  };
  struct Values {
    Dtype dtype = Dtype::fp32;
    std::span<const std::byte> bytes;
  };

  // Where contributions are added up, if not in host memory.
  class Adder {
   public:
    virtual ~Adder() = default;
    // Whether the sum begins with this micro-batch: what was in its place is of another.
    virtual bool starts_sum(uint32_t micro_batch) const = 0;
    // Of the use that is computed.
    virtual void zero(uint32_t unit) = 0;
    virtual void add(const Part& part, const Values& values, uint64_t count) = 0;
  };

  enum class Taken {
    added,           // to the sum, or stays to be: the gradient is not complete yet
    completes,       // so taken, and the gradient is complete
    completes_with,  // not added: the gradient is the sum with these values, which finish() joins piece by piece
    passes_by,       // not added: this part of the gradient is complete, for convert() to join and measure() to measure
  };
  // Takes the next contribution to a unit, or a part of it; where nothing is added up, parts come in order. Refuses
  // what comes twice, micro-batches of a use out of order, values outside the unit.
  Result<Taken> take(const Part& part, const Values& values);

  // Backward of the micro-batch has come back through the use: what it has not given is zero. The units whose gradient
  // is thereby complete.
  std::vector<uint32_t> end_pass(uint32_t use, uint32_t micro_batch);

  // Where a run of a unit's gradient goes, in the workload's gradient dtype, and its sums of squares by block.
  struct Target {
    uint64_t first_element = 0, elements = 0;
    std::byte* place = nullptr;
    std::span<double> squares;
  };
  // Once for every element of a complete gradient. `last`: what take() did not add, of the whole unit.
  void finish(uint32_t unit, const std::optional<Values>& last, std::span<const Target> targets);
  // The same for one run, by the caller alone; by several threads at once for several runs.
  void finish_run(uint32_t unit, const std::optional<Values>& last, const Target& target);

  // Values [skip, skip + count) of what passes by into `target`, in the workload's gradient dtype.
  void convert(const Values& values, uint64_t skip, uint64_t count, std::byte* target) const;
  void measure(const std::byte* gradient, uint64_t count, std::span<double> squares) const;

  // All of the unit was finished: what it was added up in may be used by another.
  void finished(uint32_t unit);

  // The parameter has no gradient in this step: nothing is waited for, and its elements are zero. Refused where it has
  // got one, or was declared absent. Whether the unit's gradient is thereby complete.
  Result<bool> give_up(uint32_t unit, uint32_t parameter);

  // What the unit has got in this step, so that it cannot be without a gradient; empty if nothing.
  std::string why_not_absent(uint32_t unit) const;
  // Nothing will be handed over for the unit in this step.
  void give_up(uint32_t unit) { units_[unit].done = true; }

  bool complete(uint32_t unit) const { return units_[unit].done; }
  // Some element of it.
  bool has_values(uint32_t unit) const { return units_[unit].has_values; }

 private:
  GradientIntake(const Workload& workload, Adder* adder, cpu_optim::UpdateWorkers& workers);

  // A part of the last contribution that is not added: it stays where it was given until finished().
  struct StayingPart {
    uint64_t first_element = 0, elements = 0;
    Values values;
  };
  struct UseState {
    std::byte* sum = nullptr;
    uint32_t next_micro_batch = 0;
    std::vector<StayingPart> staying;
    std::vector<std::pair<uint64_t, uint64_t>> given;  // of that micro-batch: runs, by their first elements
  };
  struct UnitState {
    std::vector<uint32_t> uses;  // their numbers
    std::vector<UseState> of_use;
    Dtype sum_dtype = Dtype::fp32;
    bool last_stays = false;  // see SumLayout
    enum class Of : uint8_t { nothing, values, absent };
    std::vector<Of> parameters;  // what each has got, of any use and micro-batch
    bool has_values = false;     // some element of it
    bool done = false;
    std::string last_given;  // for messages
  };

  Status check(const Part& part, const Values& values, uint64_t count) const;
  bool starts_sum(uint32_t micro_batch) const {
    return adder_ != nullptr ? adder_->starts_sum(micro_batch) : micro_batch == 0;
  }
  // Whether what the micro-batch gives is not added, but stays where it was given.
  bool stays(const UnitState& unit, uint32_t micro_batch) const {
    return unit.last_stays && micro_batch + 1 == micro_batches_;
  }
  // Whether a part of the use's only contribution goes where it belongs without being added up.
  bool passes_by(const UnitState& unit, const UseState& use, uint64_t count, uint64_t elements) const;
  void join(uint32_t unit, const std::optional<Values>& last, uint64_t first, uint64_t count, std::byte* target);
  // The same where the last contribution's parts stay.
  void join_staying(uint32_t unit, uint64_t first, uint64_t count, std::byte* target);
  void convert(const Values& values, uint64_t skip, uint64_t count, std::byte* target, Dtype dtype) const;
  void note_parameters(const Part& part, uint64_t count);
  void zero(uint32_t unit, UseState& use);
  void add(const Part& part, const Values& values, UseState& use, uint64_t count);
  bool has_all_values(uint32_t unit, const UseState& use) const;
  // Whether this ends the unit's gradient.
  bool end_micro_batch(UnitState& unit, UseState& use) const;

  const Workload& workload_;
  const cpu_optim::GradientKernels kernels_;
  cpu_optim::UpdateWorkers& workers_;
  Adder* const adder_ = nullptr;
  std::vector<UnitState> units_;
  std::map<const std::byte*, uint32_t> summing_;  // the unit that is added up in a place
  uint32_t micro_batches_ = 1;
};

}  // namespace penstock::engine
