#include "tools/update/plain_run.h"

namespace penstock::tools {
namespace {

void note(Comparison& comparison, const std::string& tensor, uint64_t index, uint32_t tiered, uint32_t plain) {
  ++comparison.words_compared;
  if (tiered == plain) return;
  ++comparison.words_different;
  if (!comparison.first) comparison.first = {tensor, index, tiered, plain};
}

}  // namespace

PlainRun::PlainRun(const UpdateRun& run) : run_(run) {
  const std::vector<Unit>& shapes = run.model().units();
  for (uint32_t unit = 0; unit < shapes.size(); ++unit) {
    std::vector<float> master(shapes[unit].elements);
    run.model().initial(unit, 0, master);
    units_.emplace_back(std::move(master));
  }
  const Hyper& hyper = run.hyper();
  settings_.groups = {{hyper.lr, hyper.beta1, hyper.beta2, hyper.eps, hyper.weight_decay}};
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
    const std::string& name = run_.model().units()[index].parameters.front().name;
    std::vector<uint16_t> halves(unit.p.size());
    std::vector<float> moments(unit.p.size());
    auto read = [&](Role role, auto& values) {
      ++comparison.tensors;
      return engine.read(index, role, 0, std::as_writable_bytes(std::span(values)));
    };
    PENSTOCK_TRY(read(Role::weight, halves));
    for (size_t i = 0; i < halves.size(); ++i) note(comparison, name, i, halves[i], unit.high(i));
    PENSTOCK_TRY(read(Role::master_low, halves));
    for (size_t i = 0; i < halves.size(); ++i) note(comparison, name + " master_low", i, halves[i], unit.low(i));
    PENSTOCK_TRY(read(Role::momentum, moments));
    for (size_t i = 0; i < moments.size(); ++i) {
      note(comparison, name + " momentum", i, plain::bits(moments[i]), plain::bits(unit.m[i]));
    }
    PENSTOCK_TRY(read(Role::variance, moments));
    for (size_t i = 0; i < moments.size(); ++i) {
      note(comparison, name + " variance", i, plain::bits(moments[i]), plain::bits(unit.v[i]));
    }
  }
  return comparison;
}

}  // namespace penstock::tools
