// EngineLink is EngineVerbs over the engine: what a training step asks for comes from the tiers.
#pragma once

#include <vector>

#include "runtime/trainer/engine_verbs.h"
#include "runtime/trainer/model.h"
#include "runtime/trainer/step_engine.h"

namespace penstock::trainer {

// The engine's account of a model.
std::vector<Unit> units_of(const Model& model);
std::vector<Use> uses_of(const Model& model);

class EngineLink final : public EngineVerbs {
 public:
  // `engine` outlives this, and is within a step, or between begin_forward() and end_forward(), while this is
  // used. It computes in place or on a host device: what it
  // gives is memory that the calling thread reaches, and complete when it is given.
  explicit EngineLink(StepEngine& engine) : engine_(engine) {}

  // The step's passages, in the order of the plan.
  std::vector<Passage> order() const;

  Result<std::span<const UnitWeights>> acquire(const Passage& passage) override;
  Status release(const Passage& passage) override;
  Status gradient(const Passage& passage, uint32_t unit, uint64_t first_element, Dtype dtype,
                  std::span<const std::byte> values) override;
  Status put(uint32_t use, uint32_t micro_batch, uint32_t index, std::span<const std::byte> bytes) override;
  Status get(uint32_t use, uint32_t micro_batch, uint32_t index, std::span<std::byte> into) override;

 private:
  StepEngine& engine_;
  std::vector<UnitWeights> lent_;
};

}  // namespace penstock::trainer
