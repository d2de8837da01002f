// 4 lanes on AArch64.
#pragma once

#include <arm_neon.h>

#include <cstring>

#include "cpu_optim/lanes/xsimd_lanes.h"

namespace penstock::cpu_optim {

struct NeonLanes : XsimdLanes<xsimd::neon64> {
  PENSTOCK_LANES Float fused(Float a, Float b, Float c) { return vfmaq_f32(c, a, b); }
  PENSTOCK_LANES Float root(Float x) { return vsqrtq_f32(x); }
  PENSTOCK_LANES Float quotient(Float a, Float b) { return vdivq_f32(a, b); }

  PENSTOCK_LANES Bits load16(const void* source) {
    uint16x4_t halves;
    std::memcpy(&halves, source, 8);
    return vmovl_u16(halves);
  }
  PENSTOCK_LANES Bits packed16(Bits first, Bits second) {
    return vreinterpretq_u32_u16(vcombine_u16(vmovn_u32(first), vmovn_u32(second)));
  }
  template <size_t kBytes>
  PENSTOCK_LANES void look_up16(const std::byte* table, const std::byte* pairs, std::byte* target, bool /*streams*/) {
    static_assert(kBytes % 16 == 0);
    const uint8x16x2_t halves_of_table = vld2q_u8(reinterpret_cast<const uint8_t*>(table));
    for (size_t i = 0; i < kBytes; i += 16) {
      const uint8x16_t pair = vld1q_u8(reinterpret_cast<const uint8_t*>(pairs + i));
      const uint8x16_t first = vshrq_n_u8(pair, 4), second = vandq_u8(pair, vdupq_n_u8(0xf));
      const auto find = [&](int half, uint8x16_t at) { return vqtbl1q_u8(halves_of_table.val[half], at); };
      vst4q_u8(reinterpret_cast<uint8_t*>(target + 4 * i),
               {{find(0, first), find(1, first), find(0, second), find(1, second)}});
    }
  }
  PENSTOCK_LANES void stream_bits(void* target, Bits x) { store_bits(target, x); }
  PENSTOCK_LANES void deinterleave(Float& a, Float& b) {
    float32x4_t x = a, y = b;
    a = vuzp1q_f32(x, y);
    b = vuzp2q_f32(x, y);
  }
  PENSTOCK_LANES void interleave(Float& a, Float& b) {
    float32x4_t x = a, y = b;
    a = vzip1q_f32(x, y);
    b = vzip2q_f32(x, y);
  }

  PENSTOCK_LANES Float load_fp16(const void* source) {
    uint16x4_t halves;
    std::memcpy(&halves, source, 8);
    return vcvt_f32_f16(vreinterpret_f16_u16(halves));
  }
  PENSTOCK_LANES Bits fp16_of(Float x) { return vmovl_u16(vreinterpret_u16_f16(vcvt_f16_f32(x))); }

  PENSTOCK_LANES Bits multiply(Bits a, Bits b) { return vmulq_u32(a, b); }
  PENSTOCK_LANES Bits shift_signed(Bits x, int count) {
    return vreinterpretq_u32_s32(vshlq_s32(vreinterpretq_s32_u32(x), vdupq_n_s32(-count)));
  }

  PENSTOCK_LANES uint16x8_t halves(Bits x) { return vreinterpretq_u16_u32(x); }
  PENSTOCK_LANES int16x8_t signed_halves(Bits x) { return vreinterpretq_s16_u32(x); }
  PENSTOCK_LANES Bits of_halves(uint16x8_t x) { return vreinterpretq_u32_u16(x); }
  PENSTOCK_LANES Bits load8(const void* source) {
    return of_halves(vmovl_u8(vld1_u8(static_cast<const uint8_t*>(source))));
  }
  PENSTOCK_LANES Bits load8_signed(const void* source) {
    return vreinterpretq_u32_s16(vmovl_s8(vld1_s8(static_cast<const int8_t*>(source))));
  }
  PENSTOCK_LANES Bits packed8(Bits first, Bits second) {
    return vreinterpretq_u32_u8(vcombine_u8(vmovn_u16(halves(first)), vmovn_u16(halves(second))));
  }
  PENSTOCK_LANES Bits shift_right16(Bits x, int count) {
    return of_halves(vshlq_u16(halves(x), vdupq_n_s16(static_cast<int16_t>(-count))));
  }
  PENSTOCK_LANES Bits signs16(Bits x) { return vreinterpretq_u32_s16(vshrq_n_s16(signed_halves(x), 15)); }
  PENSTOCK_LANES Bits add16(Bits a, Bits b) { return of_halves(vaddq_u16(halves(a), halves(b))); }
  PENSTOCK_LANES Bits excess16(Bits a, Bits b) { return of_halves(vqsubq_u16(halves(a), halves(b))); }
  PENSTOCK_LANES Bits larger16(Bits a, Bits b) {
    return vreinterpretq_u32_s16(vmaxq_s16(signed_halves(a), signed_halves(b)));
  }
  PENSTOCK_LANES Bits sum_if_set16(Bits x, uint32_t mask, Bits y) {
    return of_halves(vandq_u16(vtstq_u16(halves(x), halves(bits(mask))), vaddq_u16(halves(x), halves(y))));
  }
  PENSTOCK_LANES uint32_t largest_of16(Bits x) { return static_cast<uint16_t>(vmaxvq_s16(signed_halves(x))); }

  struct Squares {
    float64x2_t low, high;
  };
  PENSTOCK_LANES Squares load_squares(const double* sums) { return {vld1q_f64(sums), vld1q_f64(sums + 2)}; }
  PENSTOCK_LANES void store_squares(double* sums, Squares s) {
    vst1q_f64(sums, s.low);
    vst1q_f64(sums + 2, s.high);
  }
  PENSTOCK_LANES Squares add_squares(Squares sums, Float x) {
    float64x2_t low = vcvt_f64_f32(vget_low_f32(x)), high = vcvt_high_f64_f32(x);
    return {vfmaq_f64(sums.low, low, low), vfmaq_f64(sums.high, high, high)};
  }

  PENSTOCK_LANES void add_checksum_stripes(ChecksumLanes& lanes, const std::byte* stripes, uint64_t count,
                                           uint64_t first) {
    const uint64x2_t step = vdupq_n_u64(kChecksumKeyStep), start = vdupq_n_u64(first * kChecksumKeyStep);
    uint64x2_t keys[4], sums[4];
    for (int j = 0; j < 4; ++j) {
      keys[j] = vaddq_u64(vld1q_u64(kChecksumKeys.data() + 2 * j), start);
      sums[j] = vld1q_u64(lanes.data() + 2 * j);
    }
    for (uint64_t s = 0; s < count; ++s) {
      for (int j = 0; j < 4; ++j) {
        uint64x2_t word;
        std::memcpy(&word, stripes + s * kChecksumStripeBytes + 16 * j, 16);
        uint64x2_t x = veorq_u64(word, keys[j]);
        sums[j] = vmlal_u32(vaddq_u64(sums[j], x), vmovn_u64(x), vshrn_n_u64(x, 32));
        keys[j] = vaddq_u64(keys[j], step);
      }
    }
    for (int j = 0; j < 4; ++j) vst1q_u64(lanes.data() + 2 * j, sums[j]);
  }
};

}  // namespace penstock::cpu_optim
