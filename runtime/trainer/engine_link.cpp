#include "runtime/trainer/engine_link.h"

#include <cstring>

#include "tiering/check.h"

namespace penstock::trainer {
namespace {

engine::ComputePass pass_of(const Passage& passage) {
  const bool is_forward = passage.direction == Direction::forward;
  return {is_forward ? penstock::Direction::forward : penstock::Direction::backward, passage.use, passage.micro_batch};
}

}  // namespace

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
  for (const ModelUse& use : model.uses) uses.push_back({.name = use.name, .units = use.units});
  return uses;
}

std::vector<Passage> EngineLink::order() const {
  std::vector<Passage> order;
  for (const engine::ComputePass& pass : engine_.passes()) {
    const bool is_forward = pass.direction == penstock::Direction::forward;
    order.push_back({is_forward ? Direction::forward : Direction::backward, pass.use, pass.micro_batch});
  }
  return order;
}

Result<std::span<const UnitWeights>> EngineLink::acquire(const Passage& passage) {
  PENSTOCK_TRY_ASSIGN(weights, engine_.acquire(pass_of(passage)));
  lent_.clear();
  for (const engine::UnitWeights& unit : weights) {
    lent_.push_back({unit.unit, unit.bytes.data(), unit.elements});
  }
  return std::span<const UnitWeights>(lent_);
}

Status EngineLink::release(const Passage& passage) { return engine_.release(pass_of(passage)); }

Status EngineLink::gradient(const Passage& passage, uint32_t unit, uint64_t first_element, Dtype dtype,
                            std::span<const std::byte> values) {
  return engine_.gradient(
      {.unit = unit, .micro_batch = passage.micro_batch, .use = passage.use, .first_element = first_element}, dtype,
      values);
}

// The engine counts the pieces itself.
Status EngineLink::put(uint32_t use, uint32_t micro_batch, uint32_t, std::span<const std::byte> bytes) {
  PENSTOCK_TRY_ASSIGN(room, engine_.put({penstock::Direction::forward, use, micro_batch}, bytes.size()));
  std::memcpy(room.data(), bytes.data(), bytes.size());
  return Status();
}

Status EngineLink::get(uint32_t use, uint32_t micro_batch, uint32_t index, std::span<std::byte> into) {
  PENSTOCK_TRY_ASSIGN(bytes, engine_.get({penstock::Direction::backward, use, micro_batch}, index));
  CHECK(bytes.size() == into.size(), "use ", use, ", micro-batch ", micro_batch, ": ", into.size(),
        " B wanted of an activation of ", bytes.size(), " B");
  std::memcpy(into.data(), bytes.data(), bytes.size());
  return Status();
}

}  // namespace penstock::trainer
