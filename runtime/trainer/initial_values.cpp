#include "runtime/trainer/initial_values.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/trainer/counter_random.h"

namespace penstock::trainer {
namespace {

// Normal with deviation 1, by Box and Muller: both numbers of an element are its own.
double normal(uint64_t radius_key, uint64_t angle_key, uint64_t element) {
  const double radius = (stream_bits(radius_key, element) + 0.5) / 4294967296.0;
  const double angle = stream_bits(angle_key, element) / 4294967296.0;
  return std::sqrt(-2 * std::log(radius)) * std::cos(2 * std::numbers::pi * angle);
}

// From -1 to 1.
double uniform(uint64_t key, uint64_t element) { return (stream_bits(key, element) + 0.5) / 2147483648.0 - 1; }

}  // namespace

void fill_initial_values(const Model& model, uint64_t seed, uint32_t unit, uint64_t first, std::span<float> values) {
  std::fill(values.begin(), values.end(), 0.0f);
  const std::vector<ModelParameter>& parameters = model.units.at(unit).parameters;
  for (uint32_t i = 0; i < parameters.size(); ++i) {
    const ModelParameter& parameter = parameters[i];
    const uint64_t begin = std::max(first, parameter.first_element);
    const uint64_t end = std::min(first + values.size(), parameter.first_element + parameter.elements);
    if (begin >= end || parameter.initial == Initial::zeros) continue;
    if (parameter.initial == Initial::uniform) {
      const uint64_t key = stream_key(seed, unit, i, 0);
      for (uint64_t element = begin; element < end; ++element)
        values[element - first] =
            static_cast<float>(parameter.deviation * uniform(key, element - parameter.first_element));
      continue;
    }
    const uint64_t radius = stream_key(seed, unit, i, 0), angle = stream_key(seed, unit, i, 1);
    for (uint64_t element = begin; element < end; ++element)
      values[element - first] =
          parameter.initial == Initial::ones
              ? 1.0f
              : static_cast<float>(parameter.deviation * normal(radius, angle, element - parameter.first_element));
  }
}

}  // namespace penstock::trainer
