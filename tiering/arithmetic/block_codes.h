// Weights in codes of 8 or 4 bits, in blocks that share a scale: the largest magnitude of their values.
//
//   int8   round(value / scale * 127)
//   int4   round(value / scale * 7) + 8
//   nf4    the nearest of 16 fixed quantiles of the normal distribution; of two equally near, the lower
//
// Two codes of 4 bits lie in a byte, the first in the high half, as bitsandbytes lays them; of an odd length the last
// low half is zero's code. A scale below 2^-120 counts as zero, and makes the whole block zero; one that is not finite
// makes it NaN.
#pragma once

#include "tiering/arithmetic/convert.h"
#include "tiering/state_layout.h"

namespace penstock::arithmetic {

// The 16 quantiles and the midpoints between them, as bitsandbytes fixed them (create_normal_map and dQuantizeNF4);
// tests/gpu/quantise_test.cpp holds what its own code makes of the same numbers.
PENSTOCK_HOST_DEVICE constexpr float nf4_value(uint32_t code) {
  constexpr float kValues[16] = {-1.0f,
                                 -0.6961928009986877f,
                                 -0.5250730514526367f,
                                 -0.39491748809814453f,
                                 -0.28444138169288635f,
                                 -0.18477343022823334f,
                                 -0.09105003625154495f,
                                 0.0f,
                                 0.07958029955625534f,
                                 0.16093020141124725f,
                                 0.24611230194568634f,
                                 0.33791524171829224f,
                                 0.44070982933044434f,
                                 0.5626170039176941f,
                                 0.7229568362236023f,
                                 1.0f};
  return kValues[code];
}
constexpr uint32_t kNf4Midpoints = 15;
PENSTOCK_HOST_DEVICE float nf4_midpoint(uint32_t number) {
  constexpr float kMidpoints[kNf4Midpoints] = {
      -0.8480964004993439f,  -0.6106329262256622f,   -0.4599952697753906f, -0.33967943489551544f, -0.23460740596055984f,
      -0.13791173323988914f, -0.045525018125772475f, 0.03979014977812767f, 0.1202552504837513f,   0.2035212516784668f,
      0.2920137718319893f,   0.3893125355243683f,    0.5016634166240692f,  0.6427869200706482f,   0.8614784181118011f};
  return kMidpoints[number];
}

// The code whose value is zero.
PENSTOCK_HOST_DEVICE uint32_t zero_code(BlockCode code) {
  return code == BlockCode::int8 ? 0u : code == BlockCode::int4 ? 8u : 7u;
}

// To the nearest whole number, ties to even, for |value| < 2^22: beside 1.5 * 2^23 there is no room for a fraction.
PENSTOCK_HOST_DEVICE int32_t whole(float value) { return static_cast<int32_t>((value + 0x1.8p23f) - 0x1.8p23f); }

// `largest`: the largest magnitude of a block.
PENSTOCK_HOST_DEVICE float block_scale(float largest) {
  uint32_t bits = bits_of(largest);
  if (!is_finite(bits)) return float_of(0x7fc0'0000u);
  return largest < 0x1p-120f ? 0.0f : largest;
}

// What values are multiplied by before they are rounded. REQUIRES: scale > 0.
PENSTOCK_HOST_DEVICE float code_factor(BlockCode code, float scale) {
  return (code == BlockCode::int8 ? 127.0f : code == BlockCode::int4 ? 7.0f : 1.0f) / scale;
}

// What a code of int8 or int4 stands for. The product comes first.
PENSTOCK_HOST_DEVICE float int8_value(uint32_t code, float scale) {
  return static_cast<float>(static_cast<int8_t>(code)) * scale / 127.0f;
}
PENSTOCK_HOST_DEVICE float int4_value(uint32_t code, float scale) {
  return static_cast<float>(static_cast<int32_t>(code) - 8) * scale / 7.0f;
}

}  // namespace penstock::arithmetic
