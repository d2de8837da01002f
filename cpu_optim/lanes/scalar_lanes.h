// One element at a time, in the plainest C++: what the other Lanes must equal. The list of functions below is what a
// kernel may ask of any Lanes.
#pragma once

#include <cstring>

#include "tiering/arithmetic/convert.h"
#include "tiering/arithmetic/optimizer.h"
#include "tiering/arithmetic/stochastic.h"
#include "tiering/checksum.h"

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
  static Bits shift_signed(Bits x, int count) { return static_cast<Bits>(static_cast<int32_t>(x) >> count); }
  // As signed numbers.
  static Bits larger(Bits a, Bits b) { return static_cast<int32_t>(a) > static_cast<int32_t>(b) ? a : b; }
  // a's bits where mask is set, else b's.
  static Bits select_bits(uint32_t mask, Bits a, Bits b) { return (a & mask) | (b & ~mask); }
  static Bits if_set(Bits test, Bits x, Bits otherwise) { return test != 0 ? x : otherwise; }
  static bool any_nan(Float a, Float b) { return a != a || b != b; }
  static Bits zero_unless_finite(Bits x, Float decider) {
    return arithmetic::is_finite(arithmetic::bits_of(decider)) ? x : 0;
  }
  // 0, 1, 2, ...
  static Bits ramp() { return 0; }
  static uint32_t largest_of(Bits x) { return x; }

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
