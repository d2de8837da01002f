// EngineLink is the EngineVerbs of a engine::StepEngine: what a step computes with comes from the tiers, and what it
// puts away is copied there by the accelerator.
#pragma once

#include <vector>

#include "runtime/engine/step_engine.h"
#include "runtime/trainer/engine_verbs.h"
#include "runtime/trainer/model.h"

namespace penstock::trainer {

// The engine's account of a model.
std::vector<Unit> units_of(const Model& model);
std::vector<Use> uses_of(const Model& model);

class EngineLink final : public EngineVerbs {
 public:
  // Both outlive this. The engine is within a step, or between begin_forward() and end_forward(), while this is used;
  // it computes on the accelerator's device, or in place where that is the host.
  EngineLink(engine::StepEngine& engine, Accelerator& accelerator) : engine_(engine), accelerator_(accelerator) {}

  Accelerator& accelerator() override { return accelerator_; }

  Result<std::vector<UnitWeights>> acquire(const ComputePass& pass) override;
  Status release(const ComputePass& pass) override;
  Status gradient(const ComputePass& pass, uint32_t unit, uint64_t first_element, Dtype dtype,
                  std::span<const std::byte> values) override;
  Status put(uint32_t use, uint32_t micro_batch, uint32_t index, std::span<const std::byte> bytes) override;
  Status get(uint32_t use, uint32_t micro_batch, uint32_t index, std::span<std::byte> into) override;

 private:
  engine::StepEngine& engine_;
  Accelerator& accelerator_;
};

}  // namespace penstock::trainer
