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

  // kWidth numbers of 16 or 8 bits, zeros above; and 2*kWidth of them, packed. `stream` writes past the caches to an
  // address that is a multiple of the packed size.
  static Bits load16(const void* source) { return read<uint16_t>(source); }
  static void store16(void* target, Bits first, Bits second) {
    write(target, static_cast<uint16_t>(first));
    write(static_cast<std::byte*>(target) + 2, static_cast<uint16_t>(second));
  }
  static void stream16(void* target, Bits first, Bits second) { store16(target, first, second); }
  static Bits load8(const void* source) { return read<uint8_t>(source); }
  static void store8(void* target, Bits x) { write(target, static_cast<uint8_t>(x)); }

  static Bits bits(uint32_t value) { return value; }
  static Bits as_bits(Float x) { return arithmetic::bits_of(x); }
  static Float as_float(Bits x) { return arithmetic::float_of(x); }

  static Float load_fp16(const void* source) { return arithmetic::float_of_fp16(read<uint16_t>(source)); }
  static Bits fp16_of(Float x) { return arithmetic::fp16_of_float(x); }
  static Bits bf16_of(Float x) { return arithmetic::bf16_of_float(x); }

  static Bits multiply(Bits a, Bits b) { return a * b; }
  // Both below 2^31.
  static Bits larger(Bits a, Bits b) { return a > b ? a : b; }
  // x where `test` is not zero, else zero.
  static Bits where_set(Bits test, Bits x) { return test != 0 ? x : 0; }
  // a where x is finite, else b.
  static Bits where_finite(Bits x, Bits a, Bits b) { return arithmetic::is_finite(x) ? a : b; }
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
