#include "runtime/trainer/engine_link.h"

#include "tiering/check.h"

namespace penstock::trainer {

std::vector<Unit> units_of(const Model& model) {
  std::vector<Unit> units;
  for (const ModelUnit& of_model : model.units) {
    Unit unit{
        .name = of_model.name, .elements = of_model.elements, .trainable = of_model.trainable(), .parameters = {}};
    unit.code = of_model.code;
    for (const ModelParameter& parameter : of_model.parameters) {
      unit.parameters.push_back({parameter.name, parameter.first_element, parameter.elements, {}});
    }
    units.push_back(std::move(unit));
  }
  return units;
}

std::vector<Use> uses_of(const Model& model) {
  std::vector<Use> uses;
  for (const ModelUse& use : model.uses) {
    uses.push_back({.name = use.name, .units = use.units, .gradients_stay = use.kind == UseKind::block});
  }
  return uses;
}

Result<std::vector<UnitWeights>> EngineLink::acquire(const ComputePass& pass) {
  return engine_.acquire(pass, accelerator_.stream());
}

Status EngineLink::release(const ComputePass& pass) { return engine_.release(pass); }

Status EngineLink::gradient(const ComputePass& pass, uint32_t unit, uint64_t first_element, Dtype dtype,
                            std::span<const std::byte> values) {
  return engine_.gradient(
      {.unit = unit, .micro_batch = pass.micro_batch, .use = pass.use, .first_element = first_element}, dtype, values,
      accelerator_.stream());
}

// The engine counts the pieces itself.
Status EngineLink::put(uint32_t use, uint32_t micro_batch, uint32_t, std::span<const std::byte> bytes) {
  PENSTOCK_TRY_ASSIGN(room, engine_.put({Direction::forward, use, micro_batch}, bytes.size()));
  return accelerator_.copy(room, bytes);
}

Status EngineLink::get(uint32_t use, uint32_t micro_batch, uint32_t index, std::span<std::byte> into) {
  PENSTOCK_TRY_ASSIGN(bytes, engine_.get({Direction::backward, use, micro_batch}, index));
  CHECK(bytes.size() == into.size(), "use ", use, ", micro-batch ", micro_batch, ": ", into.size(),
        " B wanted of an activation of ", bytes.size(), " B");
  return accelerator_.copy(into, bytes);
}

}  // namespace penstock::trainer
