// What xsimd gives every Isa alike. Each Isa adds what xsimd lacks (16-bit numbers, streaming stores) or gets wrong
// (xsimd 8's AVX-512 fma rounds twice, its NEON division is an approximation).
#pragma once

#include <cstddef>
#include <cstdint>
#include <xsimd/xsimd.hpp>

#include "cpu_optim/lanes/inlined.h"
#include "tiering/arithmetic/checksum.h"
#include "tiering/arithmetic/optimizer.h"

namespace penstock::cpu_optim {

template <class Arch>
struct XsimdLanes {
  using Float = xsimd::batch<float, Arch>;
  using Bits = xsimd::batch<uint32_t, Arch>;
  static constexpr size_t kWidth = Float::size;

  PENSTOCK_LANES Float all(float value) { return Float(value); }
  PENSTOCK_LANES Bits bits(uint32_t value) { return Bits(value); }
  PENSTOCK_LANES Float load(const void* source) { return Float::load_unaligned(static_cast<const float*>(source)); }
  PENSTOCK_LANES void store(void* target, Float x) { x.store_unaligned(static_cast<float*>(target)); }

#if XSIMD_VERSION_MAJOR < 9
  PENSTOCK_LANES Bits as_bits(Float x) { return xsimd::bitwise_cast<Bits>(x); }
  PENSTOCK_LANES Float as_float(Bits x) { return xsimd::bitwise_cast<Float>(x); }
#else
  PENSTOCK_LANES Bits as_bits(Float x) { return xsimd::bitwise_cast<uint32_t>(x); }
  PENSTOCK_LANES Float as_float(Bits x) { return xsimd::bitwise_cast<float>(x); }
#endif

  PENSTOCK_LANES Float root(Float x) { return xsimd::sqrt(x); }
  PENSTOCK_LANES Float quotient(Float a, Float b) { return a / b; }
  PENSTOCK_LANES Float flushed(Float x, float tiny) {
    return xsimd::select(xsimd::abs(x) < all(tiny), xsimd::bitofsign(x), x);
  }
  PENSTOCK_LANES Float normal(Float x) { return x; }  // FlushScope's work
  PENSTOCK_LANES Float zero_below(Float x, float tiny) { return xsimd::select(xsimd::abs(x) < all(tiny), all(0), x); }
  PENSTOCK_LANES Float flushed_positive(Float x, float tiny) { return xsimd::select(x < all(tiny), all(0), x); }
  PENSTOCK_LANES bool any_nan(Float a, Float b) { return xsimd::any((a != a) || (b != b)); }
  PENSTOCK_LANES Float one_nan(Float x) { return xsimd::select(x == x, x, as_float(bits(arithmetic::kQuietNan))); }
  PENSTOCK_LANES Float signed_like(float size, Float x) {
    Float result = as_float(as_bits(all(size)) ^ (as_bits(x) & bits(arithmetic::kSignBit)));
    result = xsimd::select(x == all(0), all(-0.0f), result);
    return xsimd::select(x == x, result, x);
  }

  PENSTOCK_LANES Bits bf16_of(Float x) {
    Bits b = as_bits(x);
    Bits nearest = (b + bits(0x7fff) + ((b >> 16) & bits(1))) >> 16;
    return as_bits(xsimd::select(x == x, as_float(nearest), as_float(bits(0x7fc0))));
  }

  PENSTOCK_LANES Bits load_bits(const void* source) {
    return Bits::load_unaligned(static_cast<const uint32_t*>(source));
  }
  PENSTOCK_LANES void store_bits(void* target, Bits x) { x.store_unaligned(static_cast<uint32_t*>(target)); }

  PENSTOCK_LANES Bits select_bits(uint32_t mask, Bits a, Bits b) { return (a & bits(mask)) | (b & bits(~mask)); }
  PENSTOCK_LANES Bits joined_upper(Bits even, Bits odd) { return (odd & bits(0xffff'0000)) | (even >> 16); }
  PENSTOCK_LANES Bits joined_lower(Bits even, Bits odd) { return (odd << 16) | (even & bits(0xffff)); }
  PENSTOCK_LANES Bits ramp() {
    alignas(64) uint32_t counts[kWidth];
    for (size_t i = 0; i < kWidth; ++i) counts[i] = static_cast<uint32_t>(i);
    return Bits::load_aligned(counts);
  }

  PENSTOCK_LANES Bits larger(Bits a, Bits b) { return xsimd::max(a, b); }

  PENSTOCK_LANES void prefetch(const void* address) { __builtin_prefetch(address); }
};

}  // namespace penstock::cpu_optim
