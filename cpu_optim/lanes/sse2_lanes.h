// 4 lanes on any x86-64. No fma and no fp16 in hardware: both are made exactly, so this Isa is for old machines and
// for tests, not for speed.
#pragma once

#include <emmintrin.h>

#include <cstring>

#include "cpu_optim/lanes/scalar_lanes.h"
#include "cpu_optim/lanes/xsimd_lanes.h"
#include "tiering/arithmetic/convert.h"

namespace penstock::cpu_optim {

struct Sse2Lanes : XsimdLanes<xsimd::sse2> {
  // a*b + c in double, rounded to odd: where the sum is inexact its last bit is set, so that rounding it once more, to
  // float, cannot meet a tie that is none. The product of two floats is exact in double.
  PENSTOCK_LANES __m128d fused_to_odd(__m128d a, __m128d b, __m128d c) {
    __m128d product = _mm_mul_pd(a, b);
    __m128d sum = _mm_add_pd(product, c);
    __m128d of_c = _mm_sub_pd(sum, product);
    __m128d error = _mm_add_pd(_mm_sub_pd(product, _mm_sub_pd(sum, of_c)), _mm_sub_pd(c, of_c));
    // NaN compares false both ways, so an infinite or NaN sum stays as it is.
    __m128d zero = _mm_setzero_pd();
    __m128i is_inexact = _mm_castpd_si128(_mm_or_pd(_mm_cmplt_pd(error, zero), _mm_cmpgt_pd(error, zero)));
    // The sum was rounded away from zero where error and sum differ in sign: step back, then set the last bit.
    __m128i bits = _mm_castpd_si128(sum);
    __m128i differ = _mm_xor_si128(bits, _mm_castpd_si128(error));
    __m128i is_away = _mm_and_si128(is_inexact, _mm_shuffle_epi32(_mm_srai_epi32(differ, 31), _MM_SHUFFLE(3, 3, 1, 1)));
    __m128i is_odd = _mm_and_si128(bits, _mm_set1_epi64x(1));
    // An odd sum is already what rounding to odd gives, on whichever side it lies.
    __m128i step = _mm_and_si128(is_away, _mm_xor_si128(is_odd, _mm_set1_epi64x(1)));
    bits = _mm_sub_epi64(bits, step);
    bits = _mm_or_si128(bits, _mm_and_si128(is_inexact, _mm_set1_epi64x(1)));
    return _mm_castsi128_pd(bits);
  }
  PENSTOCK_LANES Float fused(Float a, Float b, Float c) {
    __m128 fa = a, fb = b, fc = c;
    __m128d low = fused_to_odd(_mm_cvtps_pd(fa), _mm_cvtps_pd(fb), _mm_cvtps_pd(fc));
    __m128d high = fused_to_odd(_mm_cvtps_pd(_mm_movehl_ps(fa, fa)), _mm_cvtps_pd(_mm_movehl_ps(fb, fb)),
                                _mm_cvtps_pd(_mm_movehl_ps(fc, fc)));
    return _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
  }

  PENSTOCK_LANES Bits load16(const void* source) {
    return _mm_unpacklo_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(source)), _mm_setzero_si128());
  }
  PENSTOCK_LANES Bits packed16(Bits first, Bits second) {
    // Packing saturates as signed numbers, so the 16 bits are made signed first.
    return _mm_packs_epi32(_mm_srai_epi32(_mm_slli_epi32(first, 16), 16),
                           _mm_srai_epi32(_mm_slli_epi32(second, 16), 16));
  }
  template <size_t kBytes>
  PENSTOCK_LANES void look_up16(const std::byte* table, const std::byte* pairs, std::byte* target, bool streams) {
    ScalarLanes::look_up16<kBytes>(table, pairs, target, streams);
  }
  PENSTOCK_LANES void stream_bits(void* target, Bits x) { _mm_stream_si128(static_cast<__m128i*>(target), x); }
  PENSTOCK_LANES void deinterleave(Float& a, Float& b) {
    __m128 x = a, y = b;
    a = _mm_shuffle_ps(x, y, _MM_SHUFFLE(2, 0, 2, 0));
    b = _mm_shuffle_ps(x, y, _MM_SHUFFLE(3, 1, 3, 1));
  }
  PENSTOCK_LANES void interleave(Float& a, Float& b) {
    __m128 x = a, y = b;
    a = _mm_unpacklo_ps(x, y);
    b = _mm_unpackhi_ps(x, y);
  }

  PENSTOCK_LANES Float load_fp16(const void* source) {
    uint16_t halves[4];
    float values[4];
    std::memcpy(halves, source, 8);
    for (int i = 0; i < 4; ++i) values[i] = arithmetic::float_of_fp16(halves[i]);
    return load(values);
  }
  PENSTOCK_LANES Bits fp16_of(Float x) {
    float values[4];
    uint32_t halves[4];
    store(values, x);
    for (int i = 0; i < 4; ++i) halves[i] = arithmetic::fp16_of_float(values[i]);
    return Bits::load_unaligned(halves);
  }

  PENSTOCK_LANES Bits multiply(Bits a, Bits b) {
    __m128i even = _mm_mul_epu32(a, b);
    __m128i odd = _mm_mul_epu32(_mm_srli_epi64(a, 32), _mm_srli_epi64(b, 32));
    return _mm_unpacklo_epi32(_mm_shuffle_epi32(even, _MM_SHUFFLE(3, 3, 2, 0)),
                              _mm_shuffle_epi32(odd, _MM_SHUFFLE(3, 3, 2, 0)));
  }
  PENSTOCK_LANES Bits shift_signed(Bits x, int count) { return _mm_srai_epi32(x, count); }

  PENSTOCK_LANES Bits load8(const void* source) {
    return _mm_unpacklo_epi8(_mm_loadl_epi64(static_cast<const __m128i*>(source)), _mm_setzero_si128());
  }
  PENSTOCK_LANES Bits load8_signed(const void* source) {
    const __m128i bytes = _mm_loadl_epi64(static_cast<const __m128i*>(source));
    return _mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
  }
  PENSTOCK_LANES Bits packed8(Bits first, Bits second) { return _mm_packus_epi16(first, second); }
  PENSTOCK_LANES Bits shift_right16(Bits x, int count) { return _mm_srli_epi16(x, count); }
  PENSTOCK_LANES Bits signs16(Bits x) { return _mm_srai_epi16(x, 15); }
  PENSTOCK_LANES Bits add16(Bits a, Bits b) { return _mm_add_epi16(a, b); }
  PENSTOCK_LANES Bits excess16(Bits a, Bits b) { return _mm_subs_epu16(a, b); }
  PENSTOCK_LANES Bits larger16(Bits a, Bits b) { return _mm_max_epi16(a, b); }
  PENSTOCK_LANES Bits sum_if_set16(Bits x, uint32_t mask, Bits y) {
    const __m128i is_zero = _mm_cmpeq_epi16(_mm_and_si128(x, bits(mask)), _mm_setzero_si128());
    return _mm_andnot_si128(is_zero, _mm_add_epi16(x, y));
  }
  PENSTOCK_LANES uint32_t largest_of16(Bits x) {
    x = larger16(x, _mm_srli_si128(x, 8));
    x = larger16(x, _mm_srli_si128(x, 4));
    x = larger16(x, _mm_srli_si128(x, 2));
    return static_cast<uint32_t>(_mm_extract_epi16(x, 0));
  }

  struct Squares {
    __m128d low, high;
  };
  PENSTOCK_LANES Squares load_squares(const double* sums) { return {_mm_loadu_pd(sums), _mm_loadu_pd(sums + 2)}; }
  PENSTOCK_LANES void store_squares(double* sums, Squares s) {
    _mm_storeu_pd(sums, s.low);
    _mm_storeu_pd(sums + 2, s.high);
  }
  // The square of a float is exact in double, so this is the fused sum of the other Lanes.
  PENSTOCK_LANES Squares add_squares(Squares sums, Float x) {
    __m128 fx = x;
    __m128d low = _mm_cvtps_pd(fx), high = _mm_cvtps_pd(_mm_movehl_ps(fx, fx));
    return {_mm_add_pd(sums.low, _mm_mul_pd(low, low)), _mm_add_pd(sums.high, _mm_mul_pd(high, high))};
  }

  PENSTOCK_LANES void add_checksum_stripes(ChecksumLanes& lanes, const std::byte* stripes, uint64_t count,
                                           uint64_t first) {
    const __m128i step = _mm_set1_epi64x(static_cast<long long>(kChecksumKeyStep));
    const __m128i start = _mm_set1_epi64x(static_cast<long long>(first * kChecksumKeyStep));
    __m128i keys[4], sums[4];
    for (int j = 0; j < 4; ++j) {
      keys[j] = _mm_add_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kChecksumKeys.data()) + j), start);
      sums[j] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes.data()) + j);
    }
    for (uint64_t s = 0; s < count; ++s) {
      const __m128i* words = reinterpret_cast<const __m128i*>(stripes + s * kChecksumStripeBytes);
      for (int j = 0; j < 4; ++j) {
        __m128i x = _mm_xor_si128(_mm_loadu_si128(words + j), keys[j]);
        sums[j] = _mm_add_epi64(sums[j], _mm_add_epi64(x, _mm_mul_epu32(x, _mm_srli_epi64(x, 32))));
        keys[j] = _mm_add_epi64(keys[j], step);
      }
    }
    for (int j = 0; j < 4; ++j) _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes.data()) + j, sums[j]);
  }
};

}  // namespace penstock::cpu_optim
