// Moments in one byte each: small floating-point numbers that share the largest exponent of their block of
// kMomentBlockElements elements, rounded stochastically.
//
//   momentum   1 sign bit, 4 exponent bits, 3 fraction bits                    steps of 1/8 to 1/16 of the value
//   variance   its root s = sqrt(v): 4 exponent bits, 4 fraction bits          steps of 1/16 to 1/32 of s
//
// A linear code would call everything below 1/127 of the block's largest value zero, and a small s called zero makes an
// Adam step of m/eps. Here both reach down to 2^-15 of the largest (v to 2^-30), and s is zero only where the whole
// block's is: a smaller s becomes the smallest there is. A smaller m becomes zero. So an outlier costs its block: with
// gradients of one element 2^13 times those of the others, these move as with fp32 moments; at 2^14 their momenta rest
// at 0.69 of what they were and their steps at 0.73; from 2^15 on nothing of a momentum lasts until the next step,
// which is the share 1 - beta1 of a whole one; and from 2^16 on s is too large besides: 3 % of a step at 2^17, none at
// 2^19.
//
// Stochastic rounding keeps moments that change by less than a code step per update (beta2 = 0.999 changes s by 1/2000)
// right on average; to nearest they would never move. Of s that is: v, its square, rests above what fp32 would hold by
// the variance that rounding leaves in s, 2.0 % at a beta2 of 0.999 (0.9 % at 0.95, 0.4 % at 0.9).
// (Measured with adamw, beta1 0.9, gradients of one mean and deviation for all.)
//
// Rounding comes first and does not ask for the scale: it leaves the upper half of an fp32 number, of which the code's
// exponent and fraction are the upper bits. The scale is the largest exponent of a block so rounded. So everything
// after rounding is 16-bit integers, which SIMD kernels take two to a lane.
//
// Code c of a block with scale 2^E stands for 2^E times the fp32 number with bits (c << shift) + (112 << 23), that is
// 2^-15 and up; but a momentum of code 0 is zero. A scale of zero makes the whole block zero, a scale
// of NaN makes it NaN.
#pragma once

#include "tiering/arithmetic/convert.h"
#include "tiering/arithmetic/optimizer.h"
#include "tiering/arithmetic/stochastic.h"

namespace penstock::arithmetic {

struct ByteCode {
  uint32_t shift;           // fraction bits of fp32 that are dropped
  uint32_t magnitude_mask;  // of the code
};
constexpr ByteCode kMomentumCode = {20, 0x7f};
constexpr ByteCode kRootCode = {19, 0xff};
// How far up a code stands in an upper half.
constexpr uint32_t kMomentumHalfShift = kMomentumCode.shift - 16;
constexpr uint32_t kRootHalfShift = kRootCode.shift - 16;

// 32 bits for one element. kRandomGroup neighbours share a draw, which each turns by a constant of its own: every
// element's bits are uniform and independent from step to step, and a SIMD kernel gets them for one operation.
constexpr uint32_t kRandomGroup = 64;
constexpr uint32_t kTurnKey = 0x243f'6a88u;
PENSTOCK_HOST_DEVICE uint32_t group_random_bits(uint32_t key, uint32_t group) { return mix(key + group); }
PENSTOCK_HOST_DEVICE uint32_t random_turn(uint32_t place) { return random_bits(kTurnKey, place); }
PENSTOCK_HOST_DEVICE uint32_t byte_random_bits(uint32_t key, uint32_t index_low) {
  return group_random_bits(key, index_low / kRandomGroup) ^ random_turn(index_low % kRandomGroup);
}

// As many of an element's random bits as its number drops: the upper ones and the lower ones.
PENSTOCK_HOST_DEVICE uint32_t momentum_random(uint32_t random) { return random >> (32 - kMomentumCode.shift); }
PENSTOCK_HOST_DEVICE uint32_t root_random(uint32_t random) { return random & ((1u << kRootCode.shift) - 1u); }

// Rounded: the upper half of the fp32 number, whose bits below the code's mean nothing any more.
PENSTOCK_HOST_DEVICE uint32_t rounded_momentum(float momentum, uint32_t random) {
  return (bits_of(momentum) + momentum_random(random)) >> 16;
}
PENSTOCK_HOST_DEVICE uint32_t rounded_root(float root, uint32_t random) {
  return (bits_of(root) + root_random(random)) >> 16;
}

constexpr uint32_t kInfinityHalf = kInfinityBits >> 16;
constexpr uint32_t kMagnitudeHalf = kMagnitudeBits >> 16;
constexpr uint32_t kOneHalf = 0x3f80u;
constexpr uint32_t kByteExponentsHalf = 15u << 7;
constexpr uint32_t kByteTinyHalf = 0x2700u;       // of kByteTiny
constexpr uint32_t kRootScalesEndHalf = 0x5f80u;  // of 2^64, whose square is infinite
static_assert(kByteTiny == 0x1p-49f);

// The upper half of the scale of a block of momentum, or of roots, whose largest rounded magnitude this is.
PENSTOCK_HOST_DEVICE uint32_t momentum_scale_half(uint32_t largest_rounded) {
  if (largest_rounded < kByteTinyHalf) return 0;
  uint32_t exponent = largest_rounded & kInfinityHalf;
  return exponent == kInfinityHalf ? kQuietNan >> 16 : exponent;
}
PENSTOCK_HOST_DEVICE uint32_t root_scale_half(uint32_t largest_rounded) {
  return largest_rounded < kRootScalesEndHalf ? momentum_scale_half(largest_rounded) : kQuietNan >> 16;
}
PENSTOCK_HOST_DEVICE float scale_of_half(uint32_t half) { return float_of(half << 16); }

// What a code stands for, divided by the scale: the upper half of an fp32 number.
constexpr uint32_t kByteUnitHalf = kOneHalf - kByteExponentsHalf;
PENSTOCK_HOST_DEVICE float momentum_of_code(uint8_t code) {
  uint32_t magnitude = code & kMomentumCode.magnitude_mask;
  if (magnitude == 0) return 0.0f;
  return float_of((magnitude << kMomentumCode.shift) + (kByteUnitHalf << 16) + ((uint32_t{code} & 0x80u) << 24));
}
PENSTOCK_HOST_DEVICE float root_of_code(uint8_t code) {
  return float_of((uint32_t{code} << kRootCode.shift) + (kByteUnitHalf << 16));
}

// The code of a rounded number in a block of this scale that holds it. A block of scale NaN or zero is all zero codes.
PENSTOCK_HOST_DEVICE bool has_codes(float scale) { return bits_of(scale) != 0 && !is_nan(bits_of(scale)); }
PENSTOCK_HOST_DEVICE uint32_t over_base(uint32_t rounded_magnitude, float scale) {
  uint32_t base = (bits_of(scale) >> 16) - kByteExponentsHalf;
  return rounded_magnitude < base ? 0 : rounded_magnitude - base;
}
PENSTOCK_HOST_DEVICE uint8_t code_of_momentum(uint32_t rounded, float scale) {
  if (!has_codes(scale)) return 0;
  uint32_t code = over_base(rounded & kMagnitudeHalf, scale) >> kMomentumHalfShift;
  return static_cast<uint8_t>(code | (rounded >> 8 & 0x80u));
}
PENSTOCK_HOST_DEVICE uint8_t code_of_root(uint32_t rounded, float scale) {
  return has_codes(scale) ? static_cast<uint8_t>(over_base(rounded, scale) >> kRootHalfShift) : 0;
}

}  // namespace penstock::arithmetic
