#include "runtime/engine/embedded_model.h"

#include <algorithm>

namespace penstock::engine {
namespace {

// From here on a parameter is a unit of its own.
constexpr uint64_t kLargeElements = kBlockElements;
// A unit of small parameters is closed when it has so many elements: its gradient is gathered in memory of its own.
constexpr uint64_t kSharedElements = 1 << 20;

class Placing {
 public:
  Placing(EmbeddedModel& model, std::span<const EmbeddedParameter> parameters)
      : model_(model), parameters_(parameters) {}

  uint32_t open_unit(const std::string& name) {
    Unit unit;
    unit.name = name;
    model_.workload.units.push_back(unit);
    model_.of_unit.emplace_back();
    return static_cast<uint32_t>(model_.workload.units.size()) - 1;
  }
  // Parameters begin with a block of moments, so that one can be updated without its neighbour.
  void place(uint32_t number, uint32_t unit_number) {
    Unit& unit = model_.workload.units[unit_number];
    const EmbeddedParameter& parameter = parameters_[number];
    const uint64_t first = round_up(unit.elements, kMomentBlockElements);
    model_.places[number] = {{unit_number, static_cast<uint32_t>(unit.parameters.size())}, first};
    model_.of_unit[unit_number].push_back(number);
    unit.parameters.push_back({parameter.name, first, parameter.elements, parameter.group});
    unit.elements = first + parameter.elements;
    unit.group = unit.parameters.front().group.value_or(0);
  }

 private:
  EmbeddedModel& model_;
  std::span<const EmbeddedParameter> parameters_;
};

Status place_by_size(Placing& placing, std::span<const EmbeddedParameter> parameters, const EmbeddedModel& model) {
  std::optional<uint32_t> shared;
  for (uint32_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].elements >= kLargeElements) {
      placing.place(i, placing.open_unit(parameters[i].name));
      continue;
    }
    if (!shared || model.workload.units[*shared].elements >= kSharedElements) {
      shared = placing.open_unit(text("from ", parameters[i].name));
    }
    placing.place(i, *shared);
  }
  return Status();
}

Status place_by_unit(Placing& placing, std::span<const EmbeddedParameter> parameters, const EmbeddedModel& model) {
  for (uint32_t i = 0; i < parameters.size(); ++i) {
    const size_t units = model.workload.units.size();
    const uint32_t unit = parameters[i].unit;
    if (unit > units || (units > 0 && unit + 1 < units)) {
      return Status(Code::kUsage, text("parameter ", parameters[i].name, ": unit ", unit, " behind ", units, " units"),
                    "with whole steps, name every parameter's unit, in ascending order from 0");
    }
    placing.place(i, unit == units ? placing.open_unit(text("unit ", unit)) : unit);
  }
  return Status();
}

}  // namespace

Result<EmbeddedModel> EmbeddedModel::of(std::span<const EmbeddedParameter> parameters,
                                        const EmbeddedSettings& settings) {
  if (parameters.empty()) return Status(Code::kUsage, "open: no parameters");
  constexpr uint64_t kElementsMax = uint64_t{1} << 48;
  for (const EmbeddedParameter& parameter : parameters) {
    if (parameter.elements == 0 || parameter.elements > kElementsMax) {
      return Status(Code::kUsage,
                    text("parameter ", parameter.name, ": ", parameter.elements, " elements, from 1 to 2^48 expected"));
    }
  }
  EmbeddedModel model;
  model.places.resize(parameters.size());
  Workload& workload = model.workload;
  workload.form = {settings.optimizer, MasterForm::same, MomentForm::fp32, Dtype::fp32, Dtype::fp32};
  workload.micro_batches = settings.micro_batches;
  workload.clipping = settings.clipping;
  Placing placing(model, parameters);
  PENSTOCK_TRY(settings.whole_steps ? place_by_unit(placing, parameters, model)
                                    : place_by_size(placing, parameters, model));
  if (settings.whole_steps) {
    workload.scope = StepScope::training;
    workload.uses = uses_in_turn(workload.units);
  } else {
    // A program's parameters come in any order, micro-batch after micro-batch.
    for (Unit& unit : workload.units) {
      unit.gradient_in_parts = unit.parameters.size() > 1 || settings.micro_batches > 1;
    }
  }
  return model;
}

}  // namespace penstock::engine
