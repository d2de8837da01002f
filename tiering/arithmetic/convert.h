// fp32 to and from the 16-bit formats, and the split of an fp32 master into two halves. Integers only, so every
// compiler and every device gives the same bits, denormals included.
#pragma once

#include "tiering/arithmetic/host_device.h"

namespace penstock::arithmetic {

constexpr uint32_t kInfinityBits = 0x7f80'0000u;
constexpr uint32_t kMagnitudeBits = 0x7fff'ffffu;

PENSTOCK_HOST_DEVICE bool is_nan(uint32_t bits) { return (bits & kMagnitudeBits) > kInfinityBits; }
PENSTOCK_HOST_DEVICE bool is_finite(uint32_t bits) { return (bits & kMagnitudeBits) < kInfinityBits; }

PENSTOCK_HOST_DEVICE float float_of_bf16(uint16_t half) { return float_of(uint32_t{half} << 16); }

PENSTOCK_HOST_DEVICE uint16_t bf16_of_float(float value) {
  uint32_t bits = bits_of(value);
  if (is_nan(bits)) return 0x7fc0u;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

PENSTOCK_HOST_DEVICE float float_of_fp16(uint16_t half) {
  uint32_t sign = (uint32_t{half} & 0x8000u) << 16;
  uint32_t exponent = (half >> 10) & 0x1fu;
  uint32_t fraction = half & 0x3ffu;
  if (exponent == 0x1fu) {
    uint32_t quiet = fraction == 0 ? 0 : 0x0040'0000u;
    return float_of(sign | kInfinityBits | quiet | (fraction << 13));
  }
  if (exponent != 0) return float_of(sign | ((exponent + 112u) << 23) | (fraction << 13));
  if (fraction == 0) return float_of(sign);
  // A denormal: its leading one becomes the implicit bit.
  uint32_t shift = 0;
  while ((fraction & 0x400u) == 0) {
    fraction <<= 1;
    ++shift;
  }
  return float_of(sign | ((113u - shift) << 23) | ((fraction & 0x3ffu) << 13));
}

// From 65520 on it is infinity, below 2^-14 a denormal.
PENSTOCK_HOST_DEVICE uint16_t fp16_of_float(float value) {
  uint32_t bits = bits_of(value);
  uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & kMagnitudeBits;
  if (magnitude > kInfinityBits) return 0x7e00u;
  if (magnitude >= 0x477f'f000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude >= 0x3880'0000u) {
    uint32_t rebiased = magnitude - (112u << 23);
    return static_cast<uint16_t>(sign | ((rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13));
  }
  uint32_t exponent = magnitude >> 23;
  if (exponent < 102u) return static_cast<uint16_t>(sign);  // at most half of the smallest denormal, 2^-24
  uint32_t fraction = (magnitude & 0x7f'ffffu) | 0x80'0000u;
  uint32_t shift = 126u - exponent;  // 14 to 24
  uint32_t kept = fraction >> shift;
  uint32_t rest = fraction & ((1u << shift) - 1u);
  uint32_t tie = 1u << (shift - 1u);
  if (rest > tie || (rest == tie && (kept & 1u) != 0)) ++kept;
  return static_cast<uint16_t>(sign | kept);
}

// A split master: high is the master rounded to bf16, half away from zero, low is the master's low half. The rounding
// carried exactly when the top bit of low is set, so join() is exact for every number. A NaN becomes the one whose high
// is a NaN too and whose low is zero.
struct SplitMaster {
  uint16_t high;
  uint16_t low;
};

PENSTOCK_HOST_DEVICE SplitMaster split_of(float master) {
  uint32_t bits = bits_of(master);
  if (is_nan(bits)) return {0x7fc0u, 0};
  return {static_cast<uint16_t>((bits + 0x8000u) >> 16), static_cast<uint16_t>(bits)};
}

PENSTOCK_HOST_DEVICE float join(SplitMaster split) {
  return float_of((uint32_t{split.high} << 16) + split.low - ((uint32_t{split.low} & 0x8000u) << 1));
}

}  // namespace penstock::arithmetic
