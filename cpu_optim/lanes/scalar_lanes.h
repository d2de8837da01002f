// One element at a time, in the plainest C++: what the other Lanes must equal. The list of functions below is what a
// kernel may ask of any Lanes.
#pragma once

#include <cstring>

#include "tiering/arithmetic/checksum.h"
#include "tiering/arithmetic/convert.h"
#include "tiering/arithmetic/optimizer.h"
#include "tiering/arithmetic/stochastic.h"

namespace penstock::cpu_optim {

struct ScalarLanes : arithmetic::PlainNumbers {
  using Bits = uint32_t;
  static constexpr size_t kWidth = 1;

  template <class T>
  static T read(const void* source) {
    T value;
    std::memcpy(&value, source, sizeof(T));
    return value;
  }
  template <class T>
  static void write(void* target, T value) {
    std::memcpy(target, &value, sizeof(T));
  }

  static Float load(const void* source) { return read<float>(source); }
  static void store(void* target, Float x) { write(target, x); }

  // A register's bytes; streamed past the caches to an address that is a multiple of their number.
  static Bits load_bits(const void* source) { return read<Bits>(source); }
  static void store_bits(void* target, Bits x) { write(target, x); }
  static void stream_bits(void* target, Bits x) { write(target, x); }

  // kWidth 16-bit numbers with zeros above; and twice as many, packed.
  static Bits load16(const void* source) { return read<uint16_t>(source); }
  static Bits packed16(Bits first, Bits second) { return first | second << 16; }

  // Of each byte the upper half's, then the lower half's entry of a table of 16.
  template <size_t kBytes>
  static void look_up16(const std::byte* table, const std::byte* pairs, std::byte* target, bool /*streams*/) {
    uint16_t words[2 * kBytes];
    for (size_t i = 0; i < kBytes; ++i) {
      const auto pair = static_cast<uint32_t>(pairs[i]);
      std::memcpy(words + 2 * i, table + 2 * (pair >> 4), 2);
      std::memcpy(words + 2 * i + 1, table + 2 * (pair & 0xfu), 2);
    }
    std::memcpy(target, words, sizeof words);
  }

  // (a, b) from elements one after another to even and odd ones, and back.
  static void deinterleave(Float&, Float&) {}
  static void interleave(Float&, Float&) {}

  static Bits bits(uint32_t value) { return value; }
  static Bits as_bits(Float x) { return arithmetic::bits_of(x); }
  static Float as_float(Bits x) { return arithmetic::float_of(x); }

  static Float load_fp16(const void* source) { return arithmetic::float_of_fp16(read<uint16_t>(source)); }
  static Bits fp16_of(Float x) { return arithmetic::fp16_of_float(x); }
  static Bits bf16_of(Float x) { return arithmetic::bf16_of_float(x); }

  static Bits multiply(Bits a, Bits b) { return a * b; }
  static Bits larger(Bits a, Bits b) { return a > b ? a : b; }
  static Bits shift_signed(Bits x, int count) { return static_cast<Bits>(static_cast<int32_t>(x) >> count); }
  // a's bits where mask is set, else b's.
  static Bits select_bits(uint32_t mask, Bits a, Bits b) { return (a & mask) | (b & ~mask); }
  // The upper halves of two, or the lower ones: the second's above the first's.
  static Bits joined_upper(Bits even, Bits odd) { return (odd & 0xffff'0000) | (even >> 16); }
  static Bits joined_lower(Bits even, Bits odd) { return (odd << 16) | (even & 0xffff); }
  static bool any_nan(Float a, Float b) { return a != a || b != b; }
  // 0, 1, 2, ...
  static Bits ramp() { return 0; }

  // What follows takes Bits for twice kWidth 16-bit numbers.
  template <class Of>
  static Bits each16(Of of) {
    return (of(0) & 0xffffu) | of(16) << 16;
  }
  static uint32_t half(Bits x, int shift) { return x >> shift & 0xffffu; }
  static int32_t signed_half(Bits x, int shift) { return static_cast<int16_t>(x >> shift); }

  // As many bytes, with zeros or their signs above; and as many numbers below 256 of each of two, packed into bytes.
  static Bits load8(const void* source) {
    return (read<uint16_t>(source) & 0xffu) | (read<uint16_t>(source) >> 8) << 16;
  }
  static Bits load8_signed(const void* source) {
    const Bits x = load8(source);
    return each16([&](int at) { return static_cast<uint32_t>(static_cast<int8_t>(x >> at)); });
  }
  static Bits packed8(Bits first, Bits second) {
    return half(first, 0) | half(first, 16) << 8 | half(second, 0) << 16 | half(second, 16) << 24;
  }
  static Bits shift_right16(Bits x, int count) {
    return each16([&](int at) { return half(x, at) >> count; });
  }
  // All ones where the number is negative.
  static Bits signs16(Bits x) {
    return each16([&](int at) { return signed_half(x, at) < 0 ? 0xffffu : 0u; });
  }
  static Bits add16(Bits a, Bits b) {
    return each16([&](int at) { return (a >> at) + (b >> at); });
  }
  // a - b of unsigned numbers, zero where b is larger.
  static Bits excess16(Bits a, Bits b) {
    return each16([&](int at) { return half(a, at) > half(b, at) ? half(a, at) - half(b, at) : 0; });
  }
  // As signed numbers.
  static Bits larger16(Bits a, Bits b) {
    return each16([&](int at) { return signed_half(a, at) > signed_half(b, at) ? half(a, at) : half(b, at); });
  }
  // x + y where x has a bit of the mask, else zero.
  static Bits sum_if_set16(Bits x, uint32_t mask, Bits y) {
    return each16([&](int at) { return half(x & mask, at) != 0 ? half(x, at) + half(y, at) : 0u; });
  }
  static uint32_t largest_of16(Bits x) { return half(larger16(x, x >> 16), 0); }

  static void prefetch(const void* address) { __builtin_prefetch(address); }

  // kWidth sums of squares in double.
  using Squares = double;
  static Squares load_squares(const double* sums) { return *sums; }
  static void store_squares(double* sums, Squares s) { *sums = s; }
  static Squares add_squares(Squares sums, Float x) { return sums + double{x} * double{x}; }

  static void add_checksum_stripes(ChecksumLanes& lanes, const std::byte* stripes, uint64_t count, uint64_t first) {
    for (uint64_t s = 0; s < count; ++s) add_checksum_stripe(lanes, stripes + s * kChecksumStripeBytes, first + s);
  }
};

}  // namespace penstock::cpu_optim
