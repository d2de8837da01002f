// 16 lanes. Where xsimd would build a mask register into a vector and back, the masked instruction stands here.
#pragma once

#include <immintrin.h>

#include "cpu_optim/lanes/xsimd_lanes.h"

namespace penstock::cpu_optim {

struct Avx512Lanes : XsimdLanes<xsimd::avx512bw> {
  PENSTOCK_LANES Float fused(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }

  PENSTOCK_LANES Float flushed(Float x, float tiny) {
    __mmask16 is_tiny = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(tiny), _CMP_LT_OQ);
    return _mm512_mask_and_ps(x, is_tiny, x, _mm512_set1_ps(-0.0f));
  }
  PENSTOCK_LANES Float one_nan(Float x) {
    __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(x, is_nan, as_float(bits(arithmetic::kQuietNan)));
  }

  PENSTOCK_LANES Bits load16(const void* source) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(source)));
  }
  PENSTOCK_LANES __m512i packed(Bits first, Bits second) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packus_epi32(first, second));
  }
  PENSTOCK_LANES void store16(void* target, Bits first, Bits second) {
    _mm512_storeu_si512(target, packed(first, second));
  }
  PENSTOCK_LANES void stream16(void* target, Bits first, Bits second) {
    _mm512_stream_si512(static_cast<__m512i*>(target), packed(first, second));
  }
  PENSTOCK_LANES Bits load8(const void* source) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(source)));
  }
  PENSTOCK_LANES void store8(void* target, Bits x) {
    _mm_storeu_si128(static_cast<__m128i*>(target), _mm512_cvtepi32_epi8(x));
  }

  PENSTOCK_LANES Float load_fp16(const void* source) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(source)));
  }
  PENSTOCK_LANES Bits fp16_of(Float x) {
    return _mm512_cvtepu16_epi32(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  PENSTOCK_LANES Bits multiply(Bits a, Bits b) { return _mm512_mullo_epi32(a, b); }
  PENSTOCK_LANES Bits larger(Bits a, Bits b) { return _mm512_max_epu32(a, b); }
  PENSTOCK_LANES Bits where_set(Bits test, Bits x) {
    return _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(test, test), x);
  }

  struct Squares {
    __m512d low, high;
  };
  PENSTOCK_LANES Squares load_squares(const double* sums) { return {_mm512_loadu_pd(sums), _mm512_loadu_pd(sums + 8)}; }
  PENSTOCK_LANES void store_squares(double* sums, Squares s) {
    _mm512_storeu_pd(sums, s.low);
    _mm512_storeu_pd(sums + 8, s.high);
  }
  PENSTOCK_LANES Squares add_squares(Squares sums, Float x) {
    __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    return {_mm512_fmadd_pd(low, low, sums.low), _mm512_fmadd_pd(high, high, sums.high)};
  }

  PENSTOCK_LANES void add_checksum_stripes(ChecksumLanes& lanes, const std::byte* stripes, uint64_t count,
                                           uint64_t first) {
    const __m512i step = _mm512_set1_epi64(static_cast<long long>(kChecksumKeyStep));
    __m512i key = _mm512_add_epi64(_mm512_loadu_si512(kChecksumKeys.data()),
                                   _mm512_set1_epi64(static_cast<long long>(first * kChecksumKeyStep)));
    __m512i sum = _mm512_loadu_si512(lanes.data());
    for (uint64_t s = 0; s < count; ++s) {
      __m512i x = _mm512_xor_si512(_mm512_loadu_si512(stripes + s * kChecksumStripeBytes), key);
      sum = _mm512_add_epi64(sum, _mm512_add_epi64(x, _mm512_mul_epu32(x, _mm512_srli_epi64(x, 32))));
      key = _mm512_add_epi64(key, step);
    }
    _mm512_storeu_si512(lanes.data(), sum);
  }
};

}  // namespace penstock::cpu_optim
