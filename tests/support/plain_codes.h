// Values in int8, int4 or NF4, as a plain loop makes them: one block of 64 after another, sharing no code with the
// engine. What is left of weights is what passes compute with, in bf16.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace penstock::plain {

inline float through_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

inline float nearest_quantile(float value) {
  // Dettmers et al., QLoRA, appendix E.
  constexpr std::array<double, 16> kQuantiles = {-1.0,
                                                 -0.6961928009986877,
                                                 -0.5250730514526367,
                                                 -0.39491748809814453,
                                                 -0.28444138169288635,
                                                 -0.18477343022823334,
                                                 -0.09105003625154495,
                                                 0.0,
                                                 0.07958029955625534,
                                                 0.16093020141124725,
                                                 0.24611230194568634,
                                                 0.33791524171829224,
                                                 0.44070982933044434,
                                                 0.5626170039176941,
                                                 0.7229568362236023,
                                                 1.0};
  size_t code = 0;
  while (code < 15 && value > static_cast<float>((kQuantiles[code] + kQuantiles[code + 1]) / 2)) ++code;
  return static_cast<float>(kQuantiles[code]);
}

// REQUIRES: finite values, and none so small that a block counts as zero but for blocks of zeros.
inline void round_to_int8(std::vector<float>& values) {
  for (size_t first = 0; first < values.size(); first += 64) {
    const size_t end = std::min(values.size(), first + 64);
    float largest = 0;
    for (size_t i = first; i < end; ++i) largest = std::max(largest, std::fabs(values[i]));
    const float factor = largest > 0 ? 127.0f / largest : 0;
    for (size_t i = first; i < end; ++i) {
      const int code = static_cast<int>(std::nearbyint(values[i] * factor));
      values[i] = through_bf16(static_cast<float>(code) * largest / 127.0f);
    }
  }
}

// Of gradients: a value that is not finite makes its block NaN, and a block that is so small is zeros.
inline void round_to_int4(std::vector<float>& values) {
  for (size_t first = 0; first < values.size(); first += 64) {
    const size_t end = std::min(values.size(), first + 64);
    float largest = 0;
    bool is_finite = true;
    for (size_t i = first; i < end; ++i) {
      is_finite = is_finite && std::isfinite(values[i]);
      largest = std::max(largest, std::fabs(values[i]));
    }
    for (size_t i = first; i < end; ++i) {
      if (!is_finite) {
        values[i] = NAN;
      } else if (largest < 0x1p-120f) {
        values[i] = 0;
      } else {
        values[i] = std::nearbyint(values[i] * (7.0f / largest)) * largest / 7.0f;
      }
    }
  }
}

inline void round_to_nf4(std::vector<float>& values) {
  for (size_t first = 0; first < values.size(); first += 64) {
    const size_t end = std::min(values.size(), first + 64);
    float largest = 0;
    for (size_t i = first; i < end; ++i) largest = std::max(largest, std::fabs(values[i]));
    const float factor = largest > 0 ? 1.0f / largest : 0;
    for (size_t i = first; i < end; ++i) {
      values[i] = through_bf16(nearest_quantile(values[i] * factor) * largest);
    }
  }
}

}  // namespace penstock::plain
