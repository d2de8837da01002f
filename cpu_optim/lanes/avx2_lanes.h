// 8 lanes, with FMA and F16C.
#pragma once

#include <immintrin.h>

#include "cpu_optim/lanes/xsimd_lanes.h"

namespace penstock::cpu_optim {

struct Avx2Lanes : XsimdLanes<xsimd::fma3<xsimd::avx2>> {
  PENSTOCK_LANES Float fused(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }

  // A blend costs twice what the and does.
  PENSTOCK_LANES __m256 not_below(Float x, float tiny) {
    return _mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x), _mm256_set1_ps(tiny), _CMP_NLT_UQ);
  }
  PENSTOCK_LANES Float flushed(Float x, float tiny) {
    return _mm256_and_ps(x, _mm256_or_ps(not_below(x, tiny), _mm256_set1_ps(-0.0f)));
  }
  PENSTOCK_LANES Float zero_below(Float x, float tiny) { return _mm256_and_ps(x, not_below(x, tiny)); }
  PENSTOCK_LANES Float flushed_positive(Float x, float tiny) {
    return _mm256_and_ps(x, _mm256_cmp_ps(x, _mm256_set1_ps(tiny), _CMP_NLT_UQ));
  }
  PENSTOCK_LANES bool any_nan(Float a, Float b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0; }

  PENSTOCK_LANES Bits load16(const void* source) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(source)));
  }
  PENSTOCK_LANES Bits packed16(Bits first, Bits second) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), _MM_SHUFFLE(3, 1, 2, 0));
  }
  template <size_t kBytes>
  PENSTOCK_LANES void look_up16(const std::byte* table, const std::byte* pairs, std::byte* target, bool streams) {
    static_assert(kBytes % 32 == 0);
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table)), half = _mm256_set1_epi8(0xf);
    const auto of_both_lanes = [](__m256i words) {  // their lower bytes
      const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
      return _mm256_broadcastsi128_si256(bytes);
    };
    const __m256i lower = of_both_lanes(_mm256_and_si256(both, _mm256_set1_epi16(0xff)));
    const __m256i upper = of_both_lanes(_mm256_srli_epi16(both, 8));
    for (size_t i = 0; i < kBytes; i += 32) {
      const __m256i pair = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs + i));
      const __m256i first = _mm256_and_si256(_mm256_srli_epi16(pair, 4), half), second = _mm256_and_si256(pair, half);
      const __m256i a = _mm256_shuffle_epi8(lower, first), b = _mm256_shuffle_epi8(upper, first);
      const __m256i c = _mm256_shuffle_epi8(lower, second), d = _mm256_shuffle_epi8(upper, second);
      const __m256i ab = _mm256_unpacklo_epi8(a, b), cd = _mm256_unpacklo_epi8(c, d);
      const __m256i ab_next = _mm256_unpackhi_epi8(a, b), cd_next = _mm256_unpackhi_epi8(c, d);
      const __m256i words[4] = {_mm256_unpacklo_epi16(ab, cd), _mm256_unpackhi_epi16(ab, cd),
                                _mm256_unpacklo_epi16(ab_next, cd_next), _mm256_unpackhi_epi16(ab_next, cd_next)};
      std::byte* to = target + 4 * i;
      put_bits(to, _mm256_permute2x128_si256(words[0], words[1], 0x20), streams);
      put_bits(to + 32, _mm256_permute2x128_si256(words[2], words[3], 0x20), streams);
      put_bits(to + 64, _mm256_permute2x128_si256(words[0], words[1], 0x31), streams);
      put_bits(to + 96, _mm256_permute2x128_si256(words[2], words[3], 0x31), streams);
    }
  }
  PENSTOCK_LANES void put_bits(void* target, Bits x, bool streams) {
    if (streams) {
      stream_bits(target, x);
    } else {
      store_bits(target, x);
    }
  }
  PENSTOCK_LANES void stream_bits(void* target, Bits x) { _mm256_stream_si256(static_cast<__m256i*>(target), x); }
  PENSTOCK_LANES __m256 in_order(__m256 x) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), _MM_SHUFFLE(3, 1, 2, 0)));
  }
  PENSTOCK_LANES void deinterleave(Float& a, Float& b) {
    __m256 x = a, y = b;
    a = in_order(_mm256_shuffle_ps(x, y, _MM_SHUFFLE(2, 0, 2, 0)));
    b = in_order(_mm256_shuffle_ps(x, y, _MM_SHUFFLE(3, 1, 3, 1)));
  }
  PENSTOCK_LANES void interleave(Float& a, Float& b) {
    __m256 low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
    a = _mm256_permute2f128_ps(low, high, 0x20);
    b = _mm256_permute2f128_ps(low, high, 0x31);
  }

  PENSTOCK_LANES Float load_fp16(const void* source) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(source)));
  }
  PENSTOCK_LANES Bits fp16_of(Float x) {
    return _mm256_cvtepu16_epi32(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  PENSTOCK_LANES Bits multiply(Bits a, Bits b) { return _mm256_mullo_epi32(a, b); }
  PENSTOCK_LANES Bits shift_signed(Bits x, int count) { return _mm256_srai_epi32(x, count); }

  PENSTOCK_LANES Bits load8(const void* source) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(source)));
  }
  PENSTOCK_LANES Bits load8_signed(const void* source) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(source)));
  }
  PENSTOCK_LANES Bits packed8(Bits first, Bits second) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(first, second), _MM_SHUFFLE(3, 1, 2, 0));
  }
  PENSTOCK_LANES Bits shift_right16(Bits x, int count) { return _mm256_srli_epi16(x, count); }
  PENSTOCK_LANES Bits signs16(Bits x) { return _mm256_srai_epi16(x, 15); }
  PENSTOCK_LANES Bits add16(Bits a, Bits b) { return _mm256_add_epi16(a, b); }
  PENSTOCK_LANES Bits excess16(Bits a, Bits b) { return _mm256_subs_epu16(a, b); }
  PENSTOCK_LANES Bits larger16(Bits a, Bits b) { return _mm256_max_epi16(a, b); }
  PENSTOCK_LANES Bits sum_if_set16(Bits x, uint32_t mask, Bits y) {
    const __m256i is_zero = _mm256_cmpeq_epi16(_mm256_and_si256(x, bits(mask)), _mm256_setzero_si256());
    return _mm256_andnot_si256(is_zero, _mm256_add_epi16(x, y));
  }
  PENSTOCK_LANES uint32_t largest_of16(Bits x) {
    __m128i half = _mm_max_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    return ~_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi32(-1))), 0) & 0xffffu;
  }

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
