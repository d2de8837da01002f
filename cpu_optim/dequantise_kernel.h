// Codes of frozen weights to what is computed with, over Lanes (tiering/arithmetic/block_codes.h): whole blocks.
#pragma once

#include <array>

#include "cpu_optim/gradient_kernel.h"
#include "cpu_optim/kernels.h"
#include "cpu_optim/lanes/inlined.h"
#include "cpu_optim/record_kernel.h"
#include "tiering/arithmetic/block_codes.h"

namespace penstock::cpu_optim {

template <class L, BlockCode kCode, Dtype kTarget>
struct DequantisePass {
  using Gradients = GradientPass<L>;
  static constexpr uint64_t kBlock = kCodeBlockElements, kPair = Gradients::kPair, kSize = bytes_of(kTarget);
  static constexpr uint64_t kCodeBytes = kCode == BlockCode::int8 ? kBlock : kBlock / 2;

  PENSTOCK_LANES void put(const float* values, uint64_t elements, std::byte* target, bool streams) {
    for (uint64_t i = 0; i < elements; i += kPair) {
      Gradients::template put_pair<kTarget>(target, i, L::load(values + i), L::load(values + i + L::kWidth), streams);
    }
  }

  // Of nf4 there are but 16 values in a block, each rounded once.
  PENSTOCK_LANES void look_up(const std::byte* codes, float scale, std::byte* target, bool streams) {
    constexpr uint64_t kValues = 16, kPadded = round_up(kValues, kPair);
    alignas(64) static constexpr std::array<float, kPadded> kQuantiles = [] {
      std::array<float, kPadded> all{};
      for (uint32_t i = 0; i < kValues; ++i) all[i] = arithmetic::nf4_value(i);
      return all;
    }();
    alignas(64) std::byte table[kPadded * kSize];
    for (uint64_t i = 0; i < kPadded; i += kPair) {
      const auto scaled = [&](uint64_t at) { return L::load(kQuantiles.data() + at) * L::all(scale); };
      Gradients::template put_pair<kTarget>(table, i, scaled(i), scaled(i + L::kWidth), /*streams=*/false);
    }
    if constexpr (kSize == 2) {
      L::template look_up16<kBlock / 2>(table, codes, target, streams);
    } else {
      for (uint64_t i = 0; i < kBlock / 2; ++i) {
        const auto pair = static_cast<uint32_t>(codes[i]);
        __builtin_memcpy(target + 2 * i * kSize, table + (pair >> 4) * kSize, kSize);
        __builtin_memcpy(target + (2 * i + 1) * kSize, table + (pair & 0xfu) * kSize, kSize);
      }
    }
  }

  static void run(const std::byte* codes, const float* scales, uint64_t blocks, std::byte* target, bool streams) {
    for (; blocks > 0; --blocks, codes += kCodeBytes, ++scales, target += kBlock * kSize) {
      L::prefetch(codes + Gradients::kPrefetchBytes);
      if constexpr (kCode == BlockCode::int8) {
        alignas(64) float values[kBlock];
        RecordPass<L, kCode>::decode_block(codes, *scales, values);
        put(values, kBlock, target, streams);
      } else {
        look_up(codes, *scales, target, streams);
      }
    }
  }
};

}  // namespace penstock::cpu_optim
