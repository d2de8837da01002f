// 16 lanes. Where xsimd would build a mask register into a vector and back, the masked instruction stands here.
#pragma once

#include <immintrin.h>

#include "cpu_optim/lanes/xsimd_lanes.h"

namespace penstock::cpu_optim {

struct Avx512Lanes : XsimdLanes<xsimd::avx512bw> {
  PENSTOCK_LANES Float fused(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }

  PENSTOCK_LANES __mmask16 below(Float x, float tiny) {
    // Below kTermTiny the five upper exponent bits are zero, below kLowBitTiny two.
    if (tiny == arithmetic::kTermTiny) return _mm512_testn_epi32_mask(as_bits(x), bits(0x7c00'0000));
    if (tiny == arithmetic::kLowBitTiny) return _mm512_testn_epi32_mask(as_bits(x), bits(0x6000'0000));
    return _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(tiny), _CMP_LT_OQ);
  }
  PENSTOCK_LANES Float flushed(Float x, float tiny) {
    return _mm512_mask_and_ps(x, below(x, tiny), x, _mm512_set1_ps(-0.0f));
  }
  PENSTOCK_LANES Float zero_below(Float x, float tiny) {
    return _mm512_mask_mov_ps(x, below(x, tiny), _mm512_setzero_ps());
  }
  PENSTOCK_LANES Float flushed_positive(Float x, float tiny) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(tiny), _CMP_NLT_UQ), x);
  }
  PENSTOCK_LANES bool any_nan(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }

  PENSTOCK_LANES Bits load16(const void* source) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(source)));
  }
  PENSTOCK_LANES Bits packed16(Bits first, Bits second) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packus_epi32(first, second));
  }
  template <size_t kBytes>
  PENSTOCK_LANES void look_up16(const std::byte* table, const std::byte* pairs, std::byte* target, bool streams) {
    static_assert(kBytes % 16 == 0);
    const __m512i words = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(table)));
    for (size_t i = 0; i < kBytes; i += 16) {
      const __m512i pair = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(pairs + i)));
      const __m512i first = _mm512_srli_epi32(pair, 4), second = _mm512_slli_epi32(pair, 16);
      // Of an index of 16 bits the lower five count; both halves of the table are the same.
      const Bits found = _mm512_permutexvar_epi16(_mm512_or_si512(first, second), words);
      if (streams) {
        stream_bits(target + 4 * i, found);
      } else {
        store_bits(target + 4 * i, found);
      }
    }
  }
  PENSTOCK_LANES void stream_bits(void* target, Bits x) { _mm512_stream_si512(static_cast<__m512i*>(target), x); }
  PENSTOCK_LANES void deinterleave(Float& a, Float& b) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    __m512 x = a, y = b;
    a = _mm512_permutex2var_ps(x, even, y);
    b = _mm512_permutex2var_ps(x, odd, y);
  }
  PENSTOCK_LANES void interleave(Float& a, Float& b) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    __m512 x = a, y = b;
    a = _mm512_permutex2var_ps(x, low, y);
    b = _mm512_permutex2var_ps(x, high, y);
  }

  PENSTOCK_LANES Float load_fp16(const void* source) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(source)));
  }
  PENSTOCK_LANES Bits fp16_of(Float x) {
    return _mm512_cvtepu16_epi32(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  PENSTOCK_LANES Bits multiply(Bits a, Bits b) { return _mm512_mullo_epi32(a, b); }
  PENSTOCK_LANES Bits shift_signed(Bits x, int count) { return _mm512_srai_epi32(x, static_cast<unsigned>(count)); }
  PENSTOCK_LANES Bits select_bits(uint32_t mask, Bits a, Bits b) {
    return _mm512_ternarylogic_epi32(bits(mask), a, b, 0xca);
  }

  // A masked shuffle of bytes does in one operation what a shift and a selection do in two.
  PENSTOCK_LANES __m512i exchanged_halves() {
    return _mm512_set4_epi32(0x0d0c0f0e, 0x09080b0a, 0x05040706, 0x01000302);
  }
  PENSTOCK_LANES Bits joined_upper(Bits even, Bits odd) {
    return _mm512_mask_shuffle_epi8(odd, 0x3333'3333'3333'3333, even, exchanged_halves());
  }
  PENSTOCK_LANES Bits joined_lower(Bits even, Bits odd) {
    return _mm512_mask_shuffle_epi8(even, 0xcccc'cccc'cccc'cccc, odd, exchanged_halves());
  }

  PENSTOCK_LANES Bits load8(const void* source) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(source)));
  }
  PENSTOCK_LANES Bits load8_signed(const void* source) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(source)));
  }
  PENSTOCK_LANES Bits packed8(Bits first, Bits second) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packus_epi16(first, second));
  }
  PENSTOCK_LANES Bits shift_right16(Bits x, int count) { return _mm512_srli_epi16(x, static_cast<unsigned>(count)); }
  PENSTOCK_LANES Bits signs16(Bits x) { return _mm512_srai_epi16(x, 15); }
  PENSTOCK_LANES Bits add16(Bits a, Bits b) { return _mm512_add_epi16(a, b); }
  PENSTOCK_LANES Bits excess16(Bits a, Bits b) { return _mm512_subs_epu16(a, b); }
  PENSTOCK_LANES Bits larger16(Bits a, Bits b) { return _mm512_max_epi16(a, b); }
  PENSTOCK_LANES Bits sum_if_set16(Bits x, uint32_t mask, Bits y) {
    return _mm512_maskz_add_epi16(_mm512_test_epi16_mask(x, bits(mask)), x, y);
  }
  PENSTOCK_LANES uint32_t largest_of16(Bits x) {
    __m256i half = _mm256_max_epi16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    __m128i quarter = _mm_max_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return ~_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi32(-1))), 0) & 0xffffu;
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
    const auto splat = [](uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); };
    // Four sums, and their keys, that do not wait for one another: added up at the end, they are the one sum.
    constexpr uint64_t kSums = 4;
    const __m512i step = splat(kSums * kChecksumKeyStep);
    __m512i keys[kSums], sums[kSums];
    for (uint64_t k = 0; k < kSums; ++k) {
      keys[k] = _mm512_add_epi64(_mm512_loadu_si512(kChecksumKeys.data()), splat((first + k) * kChecksumKeyStep));
      sums[k] = _mm512_setzero_si512();
    }
    sums[0] = _mm512_loadu_si512(lanes.data());
    const auto add = [&](uint64_t k, uint64_t stripe) {
      __m512i x = _mm512_xor_si512(_mm512_loadu_si512(stripes + stripe * kChecksumStripeBytes), keys[k]);
      sums[k] = _mm512_add_epi64(sums[k], _mm512_add_epi64(x, _mm512_mul_epu32(x, _mm512_srli_epi64(x, 32))));
    };
    const uint64_t whole = count / kSums * kSums;
    for (uint64_t s = 0; s < whole; s += kSums) {
      for (uint64_t k = 0; k < kSums; ++k) {
        add(k, s + k);
        keys[k] = _mm512_add_epi64(keys[k], step);
      }
    }
    for (uint64_t k = 0; k < count - whole; ++k) add(k, whole + k);
    const __m512i sum = _mm512_add_epi64(_mm512_add_epi64(sums[0], sums[1]), _mm512_add_epi64(sums[2], sums[3]));
    _mm512_storeu_si512(lanes.data(), sum);
  }
};

}  // namespace penstock::cpu_optim
