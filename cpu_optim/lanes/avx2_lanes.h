// 8 lanes, with FMA and F16C.
#pragma once

#include <immintrin.h>

#include "cpu_optim/lanes/xsimd_lanes.h"

namespace penstock::cpu_optim {

struct Avx2Lanes : XsimdLanes<xsimd::fma3<xsimd::avx2>> {
  PENSTOCK_LANES Float fused(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }

  PENSTOCK_LANES Bits load16(const void* source) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(source)));
  }
  PENSTOCK_LANES __m256i packed(Bits first, Bits second) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), _MM_SHUFFLE(3, 1, 2, 0));
  }
  PENSTOCK_LANES void store16(void* target, Bits first, Bits second) {
    _mm256_storeu_si256(static_cast<__m256i*>(target), packed(first, second));
  }
  PENSTOCK_LANES void stream16(void* target, Bits first, Bits second) {
    _mm256_stream_si256(static_cast<__m256i*>(target), packed(first, second));
  }
  PENSTOCK_LANES Bits load8(const void* source) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(source)));
  }
  PENSTOCK_LANES void store8(void* target, Bits x) {
    __m256i low_bytes = _mm256_shuffle_epi8(x, _mm256_set1_epi32(0x0c080400));
    __m256i together = _mm256_permutevar8x32_epi32(low_bytes, _mm256_setr_epi32(0, 4, 0, 0, 0, 0, 0, 0));
    _mm_storel_epi64(static_cast<__m128i*>(target), _mm256_castsi256_si128(together));
  }

  PENSTOCK_LANES Float load_fp16(const void* source) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(source)));
  }
  PENSTOCK_LANES Bits fp16_of(Float x) {
    return _mm256_cvtepu16_epi32(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  PENSTOCK_LANES Bits multiply(Bits a, Bits b) { return _mm256_mullo_epi32(a, b); }
  PENSTOCK_LANES Bits larger(Bits a, Bits b) { return _mm256_max_epu32(a, b); }

  struct Squares {
    __m256d low, high;
  };
  PENSTOCK_LANES Squares load_squares(const double* sums) { return {_mm256_loadu_pd(sums), _mm256_loadu_pd(sums + 4)}; }
  PENSTOCK_LANES void store_squares(double* sums, Squares s) {
    _mm256_storeu_pd(sums, s.low);
    _mm256_storeu_pd(sums + 4, s.high);
  }
  PENSTOCK_LANES Squares add_squares(Squares sums, Float x) {
    __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    return {_mm256_fmadd_pd(low, low, sums.low), _mm256_fmadd_pd(high, high, sums.high)};
  }

  PENSTOCK_LANES void add_checksum_stripes(ChecksumLanes& lanes, const std::byte* stripes, uint64_t count,
                                           uint64_t first) {
    const __m256i step = _mm256_set1_epi64x(static_cast<long long>(kChecksumKeyStep));
    const __m256i start = _mm256_set1_epi64x(static_cast<long long>(first * kChecksumKeyStep));
    const __m256i* words = reinterpret_cast<const __m256i*>(stripes);
    __m256i* sums = reinterpret_cast<__m256i*>(lanes.data());
    const __m256i* keys = reinterpret_cast<const __m256i*>(kChecksumKeys.data());
    __m256i key0 = _mm256_add_epi64(_mm256_loadu_si256(keys), start);
    __m256i key1 = _mm256_add_epi64(_mm256_loadu_si256(keys + 1), start);
    __m256i sum0 = _mm256_loadu_si256(sums), sum1 = _mm256_loadu_si256(sums + 1);
    for (uint64_t s = 0; s < count; ++s) {
      __m256i x0 = _mm256_xor_si256(_mm256_loadu_si256(words + 2 * s), key0);
      __m256i x1 = _mm256_xor_si256(_mm256_loadu_si256(words + 2 * s + 1), key1);
      sum0 = _mm256_add_epi64(sum0, _mm256_add_epi64(x0, _mm256_mul_epu32(x0, _mm256_srli_epi64(x0, 32))));
      sum1 = _mm256_add_epi64(sum1, _mm256_add_epi64(x1, _mm256_mul_epu32(x1, _mm256_srli_epi64(x1, 32))));
      key0 = _mm256_add_epi64(key0, step);
      key1 = _mm256_add_epi64(key1, step);
    }
    _mm256_storeu_si256(sums, sum0);
    _mm256_storeu_si256(sums + 1, sum1);
  }
};

}  // namespace penstock::cpu_optim
