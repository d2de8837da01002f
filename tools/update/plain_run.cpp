#include "tools/update/plain_run.h"

namespace penstock::tools {
namespace {

uint32_t word_of(uint16_t value) { return value; }
uint32_t word_of(float value) { return plain::bits(value); }

// The word of a unit's role, as people name it: by parameter.
Comparison::Difference difference_at(const Unit& unit, Role role, uint64_t index, uint32_t tiered, uint32_t plain) {
  size_t number = 0;
  while (number + 1 < unit.parameters.size() && unit.parameters[number + 1].first_element <= index) ++number;
  const Parameter& parameter = unit.parameters[number];
  const std::string tensor = role == Role::weight ? parameter.name : text(parameter.name, ' ', name_of(role));
  return {tensor, index - parameter.first_element, tiered, plain};
}

}  // namespace

void Comparison::add(const Comparison& found, const std::string& name) {
  tensors += found.tensors;
  words_compared += found.words_compared;
  words_different += found.words_different;
  if (first || !found.first) return;
  first = found.first;
  first->tensor += " (" + name + ")";
}

PlainRun::PlainRun(const UpdateRun& run) : run_(run) {
  const std::vector<Unit>& shapes = run.model().units();
  for (uint32_t unit = 0; unit < shapes.size(); ++unit) {
    std::vector<float> master(shapes[unit].elements);
    run.model().initial(unit, 0, master);
    units_.emplace_back(std::move(master));
    std::vector<plain::Unit::Part>& parts = units_.back().parts;
    parts.clear();
    for (const Parameter& parameter : shapes[unit].parameters) {
      parts.push_back({*parameter.group, parameter.first_element + parameter.elements});
    }
  }
  settings_.groups.clear();
  for (const Hyper& group : run.groups()) {
    settings_.groups.push_back({group.lr, group.beta1, group.beta2, group.eps, group.weight_decay});
  }
  settings_.clip = run.clip_norm();
}

void PlainRun::step() {
  ++steps_;
  settings_.loss_scale = run_.loss_scale(steps_);
  for (uint32_t unit = 0; unit < units_.size(); ++unit) {
    std::span<const std::byte> gradient = run_.model().gradient(steps_, unit);
    units_[unit].add_gradient(reinterpret_cast<const uint16_t*>(gradient.data()), true, true);
    units_[unit].sum = {};
  }
  plain::step(units_, settings_, updates_);
}

Result<Comparison> PlainRun::compare(engine::Engine& engine) const {
  Comparison comparison;
  for (uint32_t index = 0; index < units_.size(); ++index) {
    const plain::Unit& unit = units_[index];
    const Unit& shape = run_.model().units()[index];
    std::vector<uint16_t> halves(unit.p.size());
    std::vector<float> moments(unit.p.size());
    auto compare = [&](Role role, auto& values, auto plain_value) {
      PENSTOCK_TRY(engine.read(index, role, 0, std::as_writable_bytes(std::span(values))));
      comparison.tensors += shape.parameters.size();
      comparison.words_compared += values.size();
      for (size_t i = 0; i < values.size(); ++i) {
        const uint32_t tiered = word_of(values[i]), plain = word_of(plain_value(i));
        if (tiered == plain) continue;
        ++comparison.words_different;
        if (!comparison.first) comparison.first = difference_at(shape, role, i, tiered, plain);
      }
      return Status();
    };
    PENSTOCK_TRY(compare(Role::weight, halves, [&](size_t i) { return unit.high(i); }));
    PENSTOCK_TRY(compare(Role::master_low, halves, [&](size_t i) { return unit.low(i); }));
    PENSTOCK_TRY(compare(Role::momentum, moments, [&](size_t i) { return unit.m[i]; }));
    PENSTOCK_TRY(compare(Role::variance, moments, [&](size_t i) { return unit.v[i]; }));
  }
  return comparison;
}

}  // namespace penstock::tools
