// EngineByCopies: the verbs of an engine whose device the host cannot reach, for a trainer that computes on the host.
// Weights come down when they are acquired, and gradients go up before they are given; each copy is waited for.
#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "runtime/engine/step_engine.h"

namespace penstock::engine {

class EngineByCopies {
 public:
  // `device`: the engine's, opened once more, with memory for the largest gradient.
  EngineByCopies(StepEngine& engine, Device& device) : engine_(engine), device_(device) {}

  uint64_t steps_done() const { return engine_.steps_done(); }
  const Plan& plan() const { return engine_.plan(); }
  Status begin(const StepBegin& begin) { return engine_.begin(begin); }
  std::vector<ComputePass> passes() const { return engine_.passes(); }
  Status absent_gradient(uint32_t unit, Absent absent) { return engine_.absent_gradient(unit, absent); }
  Status absent_gradient(ParameterId id, Absent absent) { return engine_.absent_gradient(id, absent); }
  Result<StepReport> step(std::string trainer_state) { return engine_.step(std::move(trainer_state)); }
  Status begin_forward() { return engine_.begin_forward(); }
  Status end_forward() { return engine_.end_forward(); }
  Status release(const ComputePass& pass) { return engine_.release(pass); }
  // The trainer keeps what backward needs.
  Result<std::span<std::byte>> put(const ComputePass& pass, uint64_t bytes) { return engine_.put(pass, bytes); }
  Result<std::span<std::byte>> get(const ComputePass& pass, size_t number) { return engine_.get(pass, number); }

  Result<std::vector<UnitWeights>> acquire(const ComputePass& pass, Stream = {}) {
    const Stream stream = device_.kernel_stream();
    PENSTOCK_TRY_ASSIGN(weights, engine_.acquire(pass, stream));
    PENSTOCK_TRY_ASSIGN(there, device_.record(stream));
    weights_.clear();
    for (UnitWeights& unit : weights) {
      std::vector<std::byte>& here = weights_.emplace_back(unit.bytes.size());
      PENSTOCK_TRY(carry(Tier::device, unit.bytes, Tier::host, here, there));
      unit.bytes = here;
    }
    return weights;
  }

  Status gradient(const GradientPart& part, Dtype dtype, std::span<const std::byte> values,
                  std::optional<Stream> = {}) {
    const std::span<std::byte> there = device_.memory().first(values.size());
    PENSTOCK_TRY(carry(Tier::host, values, Tier::device, there, {}));
    const Stream stream = device_.kernel_stream();
    PENSTOCK_TRY(engine_.gradient(part, dtype, there, stream));
    PENSTOCK_TRY_ASSIGN(taken, device_.record(stream));  // before the next comes to the same place
    while (true) {
      PENSTOCK_TRY_ASSIGN(is_over, device_.reached(taken));
      if (is_over) return Status();
    }
  }

 private:
  Status carry(Tier from, std::span<const std::byte> read, Tier to, std::span<std::byte> target, const Event& after) {
    if (read.empty()) return Status();
    const std::span<std::byte> source{const_cast<std::byte*>(read.data()), read.size()};
    return std::move(device_.copy(Lease::over(from, source), Lease::over(to, target), {&after, 1}).transfer)
        .wait()
        .status();
  }

  StepEngine& engine_;
  Device& device_;
  std::deque<std::vector<std::byte>> weights_;  // of the pass that is held
};

}  // namespace penstock::engine
