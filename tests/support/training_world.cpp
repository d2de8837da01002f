#include "tests/support/training_world.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tests/support/plain_codes.h"

namespace penstock::engine {
namespace {

std::byte activation_byte(uint64_t step, const ComputePass& pass, size_t i) {
  return static_cast<std::byte>((step * 7919 + pass.use * 104729 + pass.micro_batch * 1299709 + i) * 2654435761u >> 13);
}

// From -0.01 to 0.01.
float coefficient(uint64_t element) {
  return static_cast<float>(static_cast<int>(element * 2654435761u % 2001) - 1000) * 1e-5f;
}

}  // namespace

void TrainingWorld::set_uses(const std::vector<std::vector<uint32_t>>& units_of_uses) {
  Workload& workload = options.request.workload;
  workload.scope = StepScope::training;
  workload.uses.clear();
  for (const std::vector<uint32_t>& units : units_of_uses) {
    workload.uses.push_back({.name = text("use", workload.uses.size()),
                             .units = units,
                             .forward_s = 1e-4,
                             .backward_s = 2e-4,
                             .activation_bytes = kInputBytes + 9000 + 3001 * workload.uses.size(),
                             .boundary_bytes = kInputBytes + 700});
  }
}

void TrainingWorld::freeze(uint32_t unit, std::optional<BlockCode> code) {
  options.request.workload.units[unit].trainable = false;
  options.request.workload.units[unit].code = code;
  if (code == BlockCode::int8) plain::round_to_int8(plain().units[unit].p);
  if (code == BlockCode::nf4) plain::round_to_nf4(plain().units[unit].p);
}

TrainingWorld::Answers TrainingWorld::plain_evaluate() {
  const std::vector<std::vector<uint16_t>> weights = plain_weights();
  Answers flowing = questions();
  for (uint32_t use = 0; use < uses().size(); ++use) {
    for (Hidden& here : flowing) here = forward(use, here, views_of(use, weights));
  }
  return flowing;
}

void TrainingWorld::plain_train(uint64_t number, uint32_t count, float size) {
  std::vector<std::vector<uint16_t>> gradients = plain_gradients(number, count, size);
  std::set<uint32_t> untouched;
  for (uint32_t unit = 0; unit < gradients.size(); ++unit) {
    if (!trainable(unit)) continue;
    const Given what = given(number, unit);
    if (what == Given::zero) std::fill(gradients[unit].begin(), gradients[unit].end(), uint16_t{0});
    for (plain::Unit::Part& part : plain().units[unit].parts) part.absent = false;
    const bool by_parameter = what == Given::gradients && !parameters(unit).empty();
    if (by_parameter) leave_parts(number, unit, gradients[unit]);
    const bool skips_all = by_parameter && skips_all_parameters(number, unit);
    if (what == Given::skip || skips_all) untouched.insert(unit);
  }
  plain_update(gradients, untouched);
}

std::vector<std::vector<uint16_t>> TrainingWorld::plain_gradients(uint64_t number, uint32_t count, float size) {
  const std::vector<plain::Unit>& units = plain().units;
  const std::vector<std::vector<uint16_t>> weights = plain_weights();
  auto views = [&](uint32_t use) { return views_of(use, weights); };
  std::map<std::pair<uint32_t, uint32_t>, std::vector<float>> sums;  // by unit and use
  for (uint32_t mb = 0; mb < count; ++mb) {
    std::vector<Hidden> outputs;
    Hidden here = sample(number, first_sample + mb);
    for (uint32_t use = 0; use < uses().size(); ++use) outputs.push_back(here = forward(use, here, views(use)));
    here = loss_gradient(here, number, first_sample + mb, size);
    for (uint32_t use = static_cast<uint32_t>(uses().size()); use-- > 0;) {
      const std::vector<std::vector<float>> gradients = backward(use, outputs[use], here);
      for (size_t i = 0; i < gradients.size(); ++i) {
        std::vector<float>& sum = sums[{uses()[use].units[i], use}];
        if (mb == 0) {
          sum = gradients[i];
        } else {
          for (size_t e = 0; e < sum.size(); ++e) sum[e] += gradients[i][e];
        }
      }
    }
  }
  std::vector<std::vector<float>> totals(units.size());
  for (const auto& [unit_and_use, sum] : sums) {
    std::vector<float>& total = totals[unit_and_use.first];
    if (total.empty()) {
      total = sum;
    } else {
      for (size_t e = 0; e < total.size(); ++e) total[e] += sum[e];
    }
  }
  std::vector<std::vector<uint16_t>> gradients;
  for (const std::vector<float>& total : totals) {
    std::vector<uint16_t>& gradient = gradients.emplace_back(total.size());
    std::transform(total.begin(), total.end(), gradient.begin(), bf16_of);
  }
  return gradients;
}

void TrainingWorld::plain_update(const std::vector<std::vector<uint16_t>>& gradients,
                                 const std::set<uint32_t>& untouched) {
  std::vector<plain::Unit>& units = plain().units;
  std::vector<std::pair<uint32_t, plain::Unit>> kept;
  for (uint32_t unit = 0; unit < units.size(); ++unit) {
    const bool has = trainable(unit) && !untouched.contains(unit);
    if (has) {
      units[unit].g = gradients[unit];
      continue;
    }
    std::fill(units[unit].g.begin(), units[unit].g.end(), uint16_t{0});
    kept.emplace_back(unit, units[unit]);
  }
  plain::step(units, settings, plain().updates);
  for (auto& [unit, as_it_was] : kept) units[unit] = std::move(as_it_was);
}

std::vector<std::vector<uint16_t>> TrainingWorld::plain_weights() {
  std::vector<std::vector<uint16_t>> weights;
  const RankCodes& codes = options.request.workload.codes;
  for (uint32_t number = 0; number < plain().units.size(); ++number) {
    const plain::Unit& unit = plain().units[number];
    std::vector<uint16_t>& of = weights.emplace_back(unit.p.size());
    for (size_t i = 0; i < of.size(); ++i) of[i] = unit.high(i);
    if (!codes.weights && (trainable(number) || !codes.frozen_weights)) continue;
    std::vector<float> values(of.size());
    std::transform(of.begin(), of.end(), values.begin(), float_of);
    plain::round_to_int8(values);
    std::transform(values.begin(), values.end(), of.begin(), bf16_of);
  }
  return weights;
}

std::vector<const uint16_t*> TrainingWorld::views_of(uint32_t use,
                                                     const std::vector<std::vector<uint16_t>>& weights) const {
  std::vector<const uint16_t*> views;
  for (uint32_t unit : uses()[use].units) views.push_back(weights[unit].data());
  return views;
}

void TrainingWorld::fill_activation(uint64_t step, const ComputePass& pass, std::span<std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = activation_byte(step, pass, i);
}

uint64_t TrainingWorld::bytes_different(uint64_t step, const ComputePass& pass, std::span<const std::byte> bytes) {
  uint64_t different = 0;
  for (size_t i = 0; i < bytes.size(); ++i) different += bytes[i] != activation_byte(step, pass, i);
  return different;
}

TrainingWorld::Hidden TrainingWorld::sample(uint64_t step, uint32_t mb) {
  Hidden x;
  for (size_t j = 0; j < kWidth; ++j) x[j] = std::sin(static_cast<float>(step * 31 + mb * 7 + j));
  return x;
}

TrainingWorld::Hidden TrainingWorld::loss_gradient(const Hidden& y, uint64_t step, uint32_t mb, float size) {
  Hidden d;
  for (size_t j = 0; j < kWidth; ++j) d[j] = size * (y[j] - std::cos(static_cast<float>(step * 17 + mb * 3 + j)));
  return d;
}

TrainingWorld::Hidden TrainingWorld::forward(uint32_t use, const Hidden& x,
                                             const std::vector<const uint16_t*>& weights) const {
  Hidden sums;
  for (size_t j = 0; j < kWidth; ++j) sums[j] = x[j] * 0.5f;
  for (size_t i = 0; i < weights.size(); ++i) {
    const uint64_t count = elements(uses()[use].units[i]);
    for (uint64_t e = 0, j = 0; e < count; ++e, j = j + 1 == kWidth ? 0 : j + 1) {
      sums[j] += float_of(weights[i][e]) * coefficient(e);
    }
  }
  for (float& y : sums) y = std::tanh(y);
  return sums;
}

std::vector<std::vector<float>> TrainingWorld::backward(uint32_t use, const Hidden& output, Hidden& d) const {
  for (size_t j = 0; j < kWidth; ++j) d[j] *= 1 - output[j] * output[j];
  std::vector<std::vector<float>> gradients;
  for (uint32_t unit : uses()[use].units) {
    gradients.emplace_back(elements(unit));
    std::vector<float>& gradient = gradients.back();
    auto fill = [&](uint64_t first, uint64_t count) {
      for (uint64_t e = first; e < first + count; ++e) gradient[e] = d[e % kWidth] * coefficient(e);
    };
    // What no parameter names has none.
    if (parameters(unit).empty()) fill(0, gradient.size());
    for (size_t i = 0; i < parameters(unit).size(); ++i) {
      if (!has_no_gradient(use, i)) fill(parameters(unit)[i].first_element, parameters(unit)[i].elements);
    }
    if (unit == overflowing_unit) {
      for (float& g : gradient) g = g == 0 ? 0 : std::numeric_limits<float>::infinity();
    }
  }
  for (float& x : d) x *= 0.5f;
  return gradients;
}

}  // namespace penstock::engine
