// Moments in one byte each: small floating-point numbers that share the largest exponent of their block of
// kMomentBlockElements elements, rounded stochastically.
//
//   momentum   1 sign bit, 4 exponent bits, 3 fraction bits                    steps of 1/8 to 1/16 of the value
//   variance   its root s = sqrt(v): 4 exponent bits, 4 fraction bits          steps of 1/16 to 1/32 of s
//
// A linear code would call everything below 1/127 of the block's largest value zero, and a small s called zero makes an
// Adam step of m/eps. Here both reach down to 2^-15 of the largest (v to 2^-30), and s is never rounded to zero unless
// it is zero. Stochastic rounding keeps moments that change by less than a code step per update (beta2 = 0.999 changes
// s by 1/2000) right on average; to nearest they would never move.
//
// Code c of a block with scale 2^E is the fp32 number with bits (c << shift) + ((E - 15) << 23), and 0 is zero: integer
// shifts and adds both ways. A scale of NaN makes the whole block NaN.
#pragma once

#include "tiering/arithmetic/convert.h"

namespace penstock::arithmetic {

struct ByteCode {
  uint32_t shift;           // fraction bits of fp32 that are dropped
  uint32_t magnitude_mask;  // of the code
};
constexpr ByteCode kMomentumCode = {20, 0x7f};
constexpr ByteCode kRootCode = {19, 0xff};

// As many of an element's random bits as its number drops: the upper ones and the lower ones.
PENSTOCK_HOST_DEVICE uint32_t momentum_random(uint32_t random) { return random >> (32 - kMomentumCode.shift); }
PENSTOCK_HOST_DEVICE uint32_t root_random(uint32_t random) { return random & ((1u << kRootCode.shift) - 1u); }

constexpr uint32_t kByteExponents = 15u << 23;

// The scale of a block whose largest magnitude has these bits: 2^E such that it fits below code 128 (256).
PENSTOCK_HOST_DEVICE float byte_scale(ByteCode code, uint32_t largest_bits) {
  if (largest_bits == 0) return 0.0f;
  uint32_t scale = (largest_bits + (1u << code.shift) - 1u) & kInfinityBits;
  return float_of(scale == kInfinityBits ? 0x7fc0'0000u : scale);
}

// Bits of code 0 (were it not zero), from which codes count.
PENSTOCK_HOST_DEVICE uint32_t byte_base(float scale) { return bits_of(scale) - kByteExponents; }

PENSTOCK_HOST_DEVICE float momentum_of_byte(uint8_t byte, float scale) {
  if (is_nan(bits_of(scale))) return scale;
  uint32_t magnitude = byte & kMomentumCode.magnitude_mask;
  if (magnitude == 0) return 0.0f;
  return float_of(((magnitude << kMomentumCode.shift) + byte_base(scale)) | (uint32_t{byte} & 0x80u) << 24);
}

PENSTOCK_HOST_DEVICE float root_of_byte(uint8_t byte, float scale) {
  if (is_nan(bits_of(scale))) return scale;
  return byte == 0 ? 0.0f : float_of((uint32_t{byte} << kRootCode.shift) + byte_base(scale));
}

// REQUIRES: `scale` is byte_scale() of a block that holds the value; `random` is random_bits() of its element. A block
// of scale NaN or zero is all zero bytes.
PENSTOCK_HOST_DEVICE uint8_t byte_of_momentum(float momentum, float scale, uint32_t random) {
  if (bits_of(scale) == 0 || is_nan(bits_of(scale))) return 0;
  int32_t code =
      static_cast<int32_t>((bits_of(momentum) & kMagnitudeBits) - byte_base(scale) + momentum_random(random));
  if (code < 0) code = 0;
  return static_cast<uint8_t>((code >> kMomentumCode.shift) | (bits_of(momentum) >> 24 & 0x80u));
}

PENSTOCK_HOST_DEVICE uint8_t byte_of_root(float root, float scale, uint32_t random) {
  if (bits_of(scale) == 0 || is_nan(bits_of(scale)) || bits_of(root) == 0) return 0;
  constexpr int32_t kOne = 1 << kRootCode.shift;
  int32_t code = static_cast<int32_t>(bits_of(root) - byte_base(scale) + root_random(random));
  if (code < kOne) code = kOne;
  return static_cast<uint8_t>(code >> kRootCode.shift);
}

}  // namespace penstock::arithmetic
