// Records of codes over Lanes (tiering/arithmetic/block_codes.h): one block after another.
//
// Beside 1.5 * 2^23 the low bits of a float are a whole number in two's complement: adding that constant rounds a value
// to its code, and a code placed there is a float again once it is taken off.
#pragma once

#include "cpu_optim/kernels.h"
#include "cpu_optim/lanes/inlined.h"
#include "tiering/arithmetic/block_codes.h"
#include "tiering/code_records.h"

namespace penstock::cpu_optim {

template <class L, BlockCode kCode>
struct RecordPass {
  using Float = typename L::Float;
  using Bits = typename L::Bits;
  static constexpr uint64_t kBlock = kCodeBlockElements, kWidth = L::kWidth, kRecord = record_bytes(kCode);
  static constexpr uint64_t kAtOnce = 4 * kWidth;  // elements that fill a register with codes, or half of one
  static_assert(kBlock % kAtOnce == 0);
  static constexpr uint32_t kWholeBits = 0x4b40'0000;  // of kWhole
  static constexpr float kWhole = 0x1.8p23f;

  // Magnitudes are compared as integers, in which NaN is the largest of all.
  PENSTOCK_LANES float scale_of(const float* values) {
    Bits largest = L::bits(0);
    for (uint64_t i = 0; i < kBlock; i += kWidth) {
      largest = L::larger(largest, L::load_bits(values + i) & L::bits(arithmetic::kMagnitudeBits));
    }
    uint32_t each[kWidth];
    L::store_bits(each, largest);
    uint32_t most = 0;
    for (uint32_t one : each) most = one > most ? one : most;
    return arithmetic::block_scale(arithmetic::float_of(most));
  }

  PENSTOCK_LANES Bits whole(Float value, Float factor) { return L::as_bits(value * factor + L::all(kWhole)); }
  PENSTOCK_LANES Bits byte_codes(const float* values, Float factor) {
    return whole(L::load(values), factor) & L::bits(0xff);
  }
  // Of pairs of values, one byte a pair.
  PENSTOCK_LANES Bits pair_codes(const float* values, Float factor) {
    Float first = L::load(values), second = L::load(values + kWidth);
    L::deinterleave(first, second);
    const Bits high = (whole(first, factor) + L::bits(8)) & L::bits(0xf);
    const Bits low = (whole(second, factor) + L::bits(8)) & L::bits(0xf);
    return (high << 4) | low;
  }
  PENSTOCK_LANES void put_codes(const float* values, Float factor, std::byte* codes) {
    if constexpr (kCode == BlockCode::int8) {
      const Bits first = L::packed16(byte_codes(values, factor), byte_codes(values + kWidth, factor));
      const Bits second = L::packed16(byte_codes(values + 2 * kWidth, factor), byte_codes(values + 3 * kWidth, factor));
      L::store_bits(codes, L::packed8(first, second));
    } else {
      const Bits pairs = L::packed16(pair_codes(values, factor), pair_codes(values + 2 * kWidth, factor));
      std::byte twice[kAtOnce];
      L::store_bits(twice, L::packed8(pairs, pairs));
      __builtin_memcpy(codes, twice, kAtOnce / 2);
    }
  }

  static void encode(const float* values, uint64_t blocks, std::byte* records) {
    for (; blocks > 0; --blocks, values += kBlock, records += kRecord) {
      const float scale = scale_of(values);
      __builtin_memcpy(records, &scale, sizeof scale);
      std::byte* codes = records + sizeof scale;
      if (!(scale > 0)) {
        constexpr int kZeros = kCode == BlockCode::int8 ? 0 : 0x88;
        __builtin_memset(codes, kZeros, kRecord - sizeof scale);
        continue;
      }
      const Float factor = L::all(arithmetic::code_factor(kCode, scale));
      for (uint64_t i = 0; i < kBlock; i += kAtOnce) {
        put_codes(values + i, factor, codes + (kCode == BlockCode::int8 ? i : i / 2));
      }
    }
  }

  PENSTOCK_LANES Float value_of(Bits whole_number, Float scale) {
    constexpr float kMost = kCode == BlockCode::int8 ? 127.0f : 7.0f;
    const Float number = L::as_float(whole_number + L::bits(kWholeBits)) - L::all(kWhole);
    return L::quotient(number * scale, L::all(kMost));
  }
  PENSTOCK_LANES void put_pair(float* values, Float even, Float odd) {
    L::interleave(even, odd);
    L::store(values, even);
    L::store(values + kWidth, odd);
  }
  // Twice kWidth of int8.
  PENSTOCK_LANES void put_bytes(const std::byte* codes, Float scale, float* values) {
    const Bits halves = L::load8_signed(codes);
    put_pair(values, value_of(L::shift_signed(halves << 16, 16), scale), value_of(L::shift_signed(halves, 16), scale));
  }
  PENSTOCK_LANES Float nibble(Bits bytes, int shift, Float scale) {
    return value_of(((bytes >> shift) & L::bits(0xf)) - L::bits(8), scale);
  }
  // Four times kWidth of int4: of a register's two bytes a lane, the first has elements 0 and 1 of four.
  PENSTOCK_LANES void put_nibbles(const std::byte* codes, Float scale, float* values) {
    const Bits bytes = L::load8(codes);
    Float even = nibble(bytes, 4, scale), even_next = nibble(bytes, 20, scale);
    Float odd = nibble(bytes, 0, scale), odd_next = nibble(bytes, 16, scale);
    L::interleave(even, even_next);
    L::interleave(odd, odd_next);
    put_pair(values, even, odd);
    put_pair(values + 2 * kWidth, even_next, odd_next);
  }

  PENSTOCK_LANES void decode_block(const std::byte* codes, float scale, float* values) {
    const Float scales = L::all(scale);
    for (uint64_t i = 0; i < kBlock; i += kAtOnce) {
      if constexpr (kCode == BlockCode::int8) {
        put_bytes(codes + i, scales, values + i);
        put_bytes(codes + i + 2 * kWidth, scales, values + i + 2 * kWidth);
      } else {
        put_nibbles(codes + i / 2, scales, values + i);
      }
    }
  }
  static void decode(const std::byte* records, uint64_t blocks, float* values) {
    for (; blocks > 0; --blocks, values += kBlock, records += kRecord) {
      float scale;
      __builtin_memcpy(&scale, records, sizeof scale);
      decode_block(records + sizeof scale, scale, values);
    }
  }
};

}  // namespace penstock::cpu_optim
