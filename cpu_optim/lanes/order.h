// Which elements a register holds.
//
// 16-bit planes are cheapest to take apart into even and odd elements: two integer operations for two registers, where
// widening runs of elements one after another costs as many shuffles besides. So a kernel whose planes are mostly
// narrow works on every second element per register, and deinterleaves what fp32 planes it has. Which lane an element
// is in does not change what is computed for it.
//
//   runs    2 registers: elements 0..W-1 and W..2W-1
//   pairs   2 registers: even and odd elements of 2W
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_optim/lanes/inlined.h"

namespace penstock::cpu_optim {

enum class Order { runs, pairs };
enum class Past { through_caches, past_caches };

template <class L, Order kOrder>
struct Ordered {
  using Float = typename L::Float;
  using Bits = typename L::Bits;
  static constexpr size_t kRegisters = 2;
  static constexpr uint64_t kElements = kRegisters * L::kWidth;
  static constexpr uint32_t kUpper = 0xffff'0000;

  struct Floats {
    Float at[kRegisters];
  };
  struct Words {
    Bits at[kRegisters];
  };

  // The index of each register's elements, times `factor`.
  PENSTOCK_LANES Words indices(uint32_t factor) {
    constexpr uint32_t kStride = kOrder == Order::runs ? 1 : kRegisters;
    constexpr uint32_t kNext = kOrder == Order::runs ? L::kWidth : 1;
    Words result;
    for (uint32_t k = 0; k < kRegisters; ++k) {
      result.at[k] = L::multiply(L::ramp(), L::bits(kStride * factor)) + L::bits(k * kNext * factor);
    }
    return result;
  }

  PENSTOCK_LANES Floats ordered(Floats x) {
    if constexpr (kOrder == Order::pairs) L::deinterleave(x.at[0], x.at[1]);
    return x;
  }
  PENSTOCK_LANES Floats unordered(Floats x) {
    if constexpr (kOrder == Order::pairs) L::interleave(x.at[0], x.at[1]);
    return x;
  }

  PENSTOCK_LANES Floats load32(const std::byte* source) {
    Floats x;
    for (size_t k = 0; k < kRegisters; ++k) x.at[k] = L::load(source + k * L::kWidth * 4);
    return ordered(x);
  }
  PENSTOCK_LANES void store32(std::byte* target, Floats x) {
    x = unordered(x);
    for (size_t k = 0; k < kRegisters; ++k) L::store(target + k * L::kWidth * 4, x.at[k]);
  }

  PENSTOCK_LANES Floats load_fp16(const std::byte* source) {
    Floats x;
    for (size_t k = 0; k < kRegisters; ++k) x.at[k] = L::load_fp16(source + k * L::kWidth * 2);
    return ordered(x);
  }

  // Of pairs: each register from the upper or the lower 16-bit numbers, zeros below; and the upper halves of both.
  PENSTOCK_LANES Words parted(Bits x) { return {{x << 16, x & L::bits(kUpper)}}; }
  PENSTOCK_LANES Bits joined_upper(const Words& x) { return L::joined_upper(x.at[0], x.at[1]); }

  // 16-bit values in the upper halves, zeros below.
  PENSTOCK_LANES Words load16(const std::byte* source) {
    if constexpr (kOrder == Order::pairs) return parted(L::load_bits(source));
    Words x;
    for (size_t k = 0; k < kRegisters; ++k) x.at[k] = L::load16(source + k * L::kWidth * 2) << 16;
    return x;
  }
  // Words of which one plane has the upper halves and another the lower ones; where the lower one, as a signed number,
  // is negative, the upper one was made one too large.
  PENSTOCK_LANES Words load_split(const std::byte* upper, const std::byte* lower) {
    if constexpr (kOrder == Order::pairs) {
      const Bits low = L::load_bits(lower);
      const Bits high = L::add16(L::load_bits(upper), L::signs16(low));
      return {{L::joined_lower(low, high), L::joined_upper(low, high)}};
    }
    Words high = load16(upper), low = load16(lower);
    for (size_t k = 0; k < kRegisters; ++k) high.at[k] = high.at[k] + L::shift_signed(low.at[k], 16);
    return high;
  }
  // Writes the upper halves, whatever is below.
  PENSTOCK_LANES void store_upper16(std::byte* target, Words x, Past past = Past::through_caches) {
    put(target, packed_upper(x), past);
  }
  // Writes the lower halves, whatever is above.
  PENSTOCK_LANES void store_lower16(std::byte* target, Words x, Past past = Past::through_caches) {
    put(target, packed_lower(x), past);
  }
  // Writes both halves; the upper one is made one larger where the lower one, as a signed number, is negative.
  PENSTOCK_LANES void store_split(std::byte* upper, std::byte* lower, const Words& x, Past past) {
    const Bits low = packed_lower(x);
    L::store_bits(lower, low);
    put(upper, L::add16(packed_upper(x), L::shift_right16(low, 15)), past);
  }

 private:
  PENSTOCK_LANES Bits packed_upper(const Words& x) {
    return kOrder == Order::runs ? L::packed16(x.at[0] >> 16, x.at[1] >> 16) : joined_upper(x);
  }
  PENSTOCK_LANES Bits packed_lower(const Words& x) {
    const Bits lower = L::bits(0xffff);
    return kOrder == Order::runs ? L::packed16(x.at[0] & lower, x.at[1] & lower) : L::joined_lower(x.at[0], x.at[1]);
  }
  PENSTOCK_LANES void put(std::byte* target, Bits x, Past past) {
    if (past == Past::past_caches) {
      L::stream_bits(target, x);
    } else {
      L::store_bits(target, x);
    }
  }
};

}  // namespace penstock::cpu_optim
