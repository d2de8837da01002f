// Which elements a register holds.
//
// 16-bit planes are cheapest to take apart into even and odd elements: two integer operations for two registers, where
// widening runs of elements one after another costs as many shuffles besides; the same for bytes, by fours. So a kernel
// whose planes are mostly narrow works on every second or fourth element per register, and deinterleaves what fp32
// planes it has. Which lane an element is in does not change what is computed for it.
//
//   runs    2 registers: elements 0..W-1 and W..2W-1
//   pairs   2 registers: even and odd elements of 2W
//   quads   4 registers: elements 0, 4, 8, ... of 4W; then 1, 5, 9, ...; and so on
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_optim/lanes/inlined.h"

namespace penstock::cpu_optim {

enum class Order { runs, pairs, quads };
enum class Past { through_caches, past_caches };

constexpr size_t registers_of(Order order) { return order == Order::quads ? 4 : 2; }

template <class L, Order kOrder>
struct Ordered {
  using Float = typename L::Float;
  using Bits = typename L::Bits;
  static constexpr size_t kRegisters = registers_of(kOrder);
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
    if constexpr (kOrder == Order::quads) {
      L::deinterleave(x.at[0], x.at[1]);
      L::deinterleave(x.at[2], x.at[3]);
      L::deinterleave(x.at[0], x.at[2]);
      L::deinterleave(x.at[1], x.at[3]);
    }
    return x;
  }
  PENSTOCK_LANES Floats unordered(Floats x) {
    if constexpr (kOrder == Order::pairs) L::interleave(x.at[0], x.at[1]);
    if constexpr (kOrder == Order::quads) {
      L::interleave(x.at[0], x.at[2]);
      L::interleave(x.at[1], x.at[3]);
      L::interleave(x.at[0], x.at[1]);
      L::interleave(x.at[2], x.at[3]);
    }
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

  // 16-bit values in the upper halves, zeros below.
  PENSTOCK_LANES Words load16(const std::byte* source) {
    Words x;
    if constexpr (kOrder == Order::runs) {
      for (size_t k = 0; k < kRegisters; ++k) x.at[k] = L::load16(source + k * L::kWidth * 2) << 16;
    } else {
      for (size_t pair = 0; pair < kRegisters / 2; ++pair) x.at[pair] = L::load_bits(source + pair * L::kWidth * 4);
      if constexpr (kOrder == Order::quads) deinterleave(x.at[0], x.at[1]);
      for (size_t pair = kRegisters / 2; pair-- > 0;) {
        x.at[2 * pair + 1] = x.at[pair] & L::bits(kUpper);
        x.at[2 * pair] = x.at[pair] << 16;
      }
    }
    return x;
  }
  // Writes the upper halves, whatever is below.
  PENSTOCK_LANES void store_upper16(std::byte* target, Words x, Past past = Past::through_caches) {
    if constexpr (kOrder == Order::runs) {
      put(target, L::packed16(x.at[0] >> 16, x.at[1] >> 16), past);
    } else {
      store_pairs(target, past,
                  [&](size_t even, size_t odd) { return L::select_bits(kUpper, x.at[odd], x.at[even] >> 16); });
    }
  }
  // Writes the lower halves, whatever is above.
  PENSTOCK_LANES void store_lower16(std::byte* target, Words x, Past past = Past::through_caches) {
    if constexpr (kOrder == Order::runs) {
      put(target, L::packed16(x.at[0] & L::bits(0xffff), x.at[1] & L::bits(0xffff)), past);
    } else {
      store_pairs(target, past,
                  [&](size_t even, size_t odd) { return L::select_bits(kUpper, x.at[odd] << 16, x.at[even]); });
    }
  }

  // Bytes: the raw quads, and each register's byte at the top of the word, whatever is below.
  PENSTOCK_LANES Bits load8(const std::byte* source) { return L::load_bits(source); }
  PENSTOCK_LANES void store_top8(std::byte* target, Words x) {
    Bits bytes = L::select_bits(0xff00'0000, x.at[3], x.at[2] >> 8);
    bytes = L::select_bits(0xffff'0000, bytes, x.at[1] >> 16);
    bytes = L::select_bits(0xffff'ff00, bytes, x.at[0] >> 24);
    L::store_bits(target, bytes);
  }

 private:
  PENSTOCK_LANES void deinterleave(Bits& a, Bits& b) {
    Float fa = L::as_float(a), fb = L::as_float(b);
    L::deinterleave(fa, fb);
    a = L::as_bits(fa);
    b = L::as_bits(fb);
  }
  PENSTOCK_LANES void interleave(Bits& a, Bits& b) {
    Float fa = L::as_float(a), fb = L::as_float(b);
    L::interleave(fa, fb);
    a = L::as_bits(fa);
    b = L::as_bits(fb);
  }
  PENSTOCK_LANES void put(std::byte* target, Bits x, Past past) {
    if (past == Past::past_caches) {
      L::stream_bits(target, x);
    } else {
      L::store_bits(target, x);
    }
  }
  template <class Joined>
  PENSTOCK_LANES void store_pairs(std::byte* target, Past past, Joined joined) {
    Bits x[kRegisters / 2];
    for (size_t pair = 0; pair < kRegisters / 2; ++pair) x[pair] = joined(2 * pair, 2 * pair + 1);
    if constexpr (kOrder == Order::quads) interleave(x[0], x[1]);
    for (size_t pair = 0; pair < kRegisters / 2; ++pair) put(target + pair * L::kWidth * 4, x[pair], past);
  }
};

}  // namespace penstock::cpu_optim
