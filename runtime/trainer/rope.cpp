#include "runtime/trainer/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace penstock::trainer {

// In fp32 where transformers computes in fp32: the angles of long sequences depend on it.
std::vector<float> rope_frequencies(const Rope& rope, uint32_t head_size, uint64_t length) {
  const uint32_t dims = head_size, pairs = dims / 2;
  double base = rope.theta;
  if (rope.kind == RopeKind::dynamic) {
    const double reach = std::max(double(length), rope.original_positions);
    base *= std::pow(rope.factor * reach / rope.original_positions - (rope.factor - 1), dims / (dims - 2.0));
  }
  std::vector<float> frequencies(pairs);
  for (uint32_t pair = 0; pair < pairs; ++pair)
    frequencies[pair] = 1.0f / std::pow(float(base), float(2 * pair) / float(dims));

  if (rope.kind == RopeKind::linear) {
    for (float& frequency : frequencies) frequency /= float(rope.factor);
  } else if (rope.kind == RopeKind::llama3) {
    for (float& frequency : frequencies) {
      const double wave = 2 * std::numbers::pi / frequency;
      if (wave > rope.original_positions / rope.low_frequency_factor) {
        frequency /= float(rope.factor);
      } else if (wave >= rope.original_positions / rope.high_frequency_factor) {
        const double smooth = (rope.original_positions / wave - rope.low_frequency_factor) /
                              (rope.high_frequency_factor - rope.low_frequency_factor);
        frequency = float((1 - smooth) * frequency / rope.factor + smooth * frequency);
      }
    }
  } else if (rope.kind == RopeKind::yarn) {
    auto dimension_of = [&](double rotations) {
      return dims * std::log(rope.original_positions / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
    };
    double low = dimension_of(rope.beta_fast), high = dimension_of(rope.beta_slow);
    if (rope.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, dims - 1.0);
    if (low == high) high += 0.001;
    for (uint32_t pair = 0; pair < pairs; ++pair) {
      const double stretched = std::clamp((pair - low) / (high - low), 0.0, 1.0);
      frequencies[pair] = float(frequencies[pair] / rope.factor * stretched + frequencies[pair] * (1 - stretched));
    }
  }
  return frequencies;
}

}  // namespace penstock::trainer
