// Stochastic rounding to bf16 with counter-based numbers: what is drawn for an element depends on seed, step and the
// element's index alone, so it does not matter who rounds it, when, or in which tile.
#pragma once

#include "tiering/arithmetic/convert.h"

namespace penstock::arithmetic {

// A bijection of 32 bits in which every input bit changes every output bit with probability close to one half (the
// constants are those of Wellons' "lowbias32": bias 0.17, two multiplications).
PENSTOCK_HOST_DEVICE uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb'352du;
  x ^= x >> 15;
  x *= 0x846c'a68bu;
  x ^= x >> 16;
  return x;
}

// 2^32 / golden ratio, made odd; and a factor of "lowbias32" again.
constexpr uint32_t kRandomStep = 0x9e37'79b1u;
constexpr uint32_t kRandomFactor = 0x846c'a68bu;

// What a whole step shares, computed once.
PENSTOCK_HOST_DEVICE uint32_t step_key(uint64_t seed, uint64_t step) {
  uint32_t key = mix(static_cast<uint32_t>(seed) ^ 0x9e37'79b9u);
  key = mix(key ^ static_cast<uint32_t>(seed >> 32));
  key = mix(key ^ static_cast<uint32_t>(step));
  return mix(key ^ static_cast<uint32_t>(step >> 32));
}

// What 2^32 elements of it share. `index_high` is the upper half of the element's 64-bit index.
PENSTOCK_HOST_DEVICE uint32_t random_key(uint32_t step_key, uint32_t index_high) { return mix(step_key ^ index_high); }

PENSTOCK_HOST_DEVICE uint32_t random_key(uint64_t seed, uint64_t step, uint32_t index_high) {
  return random_key(step_key(seed, step), index_high);
}

// 32 bits for one element: the low half rounds its momentum, the high half its variance. The key, a new one each step,
// makes them uniform for every element; what follows only has to part an element from its neighbours, so one round will
// do, and costs a SIMD kernel three operations (the first product is a counter's).
PENSTOCK_HOST_DEVICE uint32_t random_bits(uint32_t key, uint32_t index_low) {
  uint32_t x = (index_low + key) * kRandomStep;
  x ^= x >> 15;
  return x * kRandomFactor;
}

// Rounds up with the probability that the dropped part says: adds 16 random bits below the cut and truncates.
// Infinity and NaN are kept.
PENSTOCK_HOST_DEVICE uint16_t bf16_stochastic(float value, uint16_t random) {
  uint32_t bits = bits_of(value);
  if (!is_finite(bits)) return bf16_of_float(value);
  return static_cast<uint16_t>((bits + random) >> 16);
}

}  // namespace penstock::arithmetic
