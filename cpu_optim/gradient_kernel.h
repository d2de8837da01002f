// The gradient kernels over Lanes: plain loops over whole groups.
#pragma once

#include "cpu_optim/kernels.h"
#include "cpu_optim/lanes/inlined.h"

namespace penstock::cpu_optim {

template <class L>
struct GradientPass {
  using Float = typename L::Float;
  using Bits = typename L::Bits;
  static constexpr uint64_t kPair = 2 * L::kWidth;
  // In bytes: about 20 lines ahead of a stream that takes a line every few nanoseconds.
  static constexpr uint64_t kPrefetchBytes = 2048;

  template <Dtype kDtype>
  PENSTOCK_LANES Float load(const std::byte* values, uint64_t i) {
    if constexpr (kDtype == Dtype::fp32) return L::load(values + i * 4);
    if constexpr (kDtype == Dtype::bf16) return L::as_float(L::load16(values + i * 2) << 16);
    if constexpr (kDtype == Dtype::fp16) return L::load_fp16(values + i * 2);
  }

  template <Dtype kDtype>
  PENSTOCK_LANES void prefetch(const std::byte* values, uint64_t i, uint64_t elements) {
    const std::byte* ahead = values + i * bytes_of(kDtype) + kPrefetchBytes;
    for (uint64_t byte = 0; byte < elements * bytes_of(kDtype); byte += 64) L::prefetch(ahead + byte);
  }

  template <Dtype kDtype>
  static void square_sums(const std::byte* values, uint64_t elements, double* lanes) {
    constexpr size_t kSums = kSquareSumLanes / L::kWidth;
    typename L::Squares sums[kSums];
    for (size_t s = 0; s < kSums; ++s) sums[s] = L::load_squares(lanes + s * L::kWidth);
    for (uint64_t i = 0; i < elements; i += kSquareSumLanes) {
      prefetch<kDtype>(values, i, kSquareSumLanes);
      for (size_t s = 0; s < kSums; ++s) sums[s] = L::add_squares(sums[s], load<kDtype>(values, i + s * L::kWidth));
    }
    for (size_t s = 0; s < kSums; ++s) L::store_squares(lanes + s * L::kWidth, sums[s]);
  }

  template <Dtype kDtype>
  static void accumulate(const std::byte* source, float* target, uint64_t elements) {
    std::byte* sums = reinterpret_cast<std::byte*>(target);
    for (uint64_t i = 0; i < elements; i += kPair) {
      prefetch<kDtype>(source, i, kPair);
      prefetch<Dtype::fp32>(sums, i, kPair);
      for (int k = 0; k < 2; ++k) {
        const uint64_t at = i + k * L::kWidth;
        L::store(sums + at * 4, L::one_nan(L::load(sums + at * 4) + load<kDtype>(source, at)));
      }
    }
  }

  PENSTOCK_LANES void put(std::byte* target, Bits x, bool streams) {
    if (streams) {
      L::stream_bits(target, x);
    } else {
      L::store_bits(target, x);
    }
  }

  // Elements i to i + kPair.
  template <Dtype kTarget>
  PENSTOCK_LANES void put_pair(std::byte* target, uint64_t i, Float first, Float second, bool streams) {
    if constexpr (kTarget == Dtype::fp32) {
      put(target + i * 4, L::as_bits(L::one_nan(first)), streams);
      put(target + (i + L::kWidth) * 4, L::as_bits(L::one_nan(second)), streams);
    } else if constexpr (kTarget == Dtype::bf16) {
      put(target + i * 2, L::packed16(L::bf16_of(first), L::bf16_of(second)), streams);
    } else {
      put(target + i * 2, L::packed16(L::fp16_of(L::one_nan(first)), L::fp16_of(L::one_nan(second))), streams);
    }
  }

  template <Dtype kSource, Dtype kTarget>
  static void cast(const std::byte* source, std::byte* target, uint64_t elements, bool streams) {
    for (uint64_t i = 0; i < elements; i += kPair) {
      prefetch<kSource>(source, i, kPair);
      put_pair<kTarget>(target, i, load<kSource>(source, i), load<kSource>(source, i + L::kWidth), streams);
    }
  }

  template <Dtype kSource, Dtype kTarget>
  static void sum(const std::byte* const* sources, size_t count, std::byte* target, uint64_t elements, bool streams) {
    for (uint64_t i = 0; i < elements; i += kPair) {
      prefetch<kSource>(sources[0], i, kPair);
      Float first = load<kSource>(sources[0], i), second = load<kSource>(sources[0], i + L::kWidth);
      for (size_t source = 1; source < count; ++source) {
        prefetch<kSource>(sources[source], i, kPair);
        first = L::one_nan(first + load<kSource>(sources[source], i));
        second = L::one_nan(second + load<kSource>(sources[source], i + L::kWidth));
      }
      put_pair<kTarget>(target, i, first, second, streams);
    }
  }
};

}  // namespace penstock::cpu_optim
