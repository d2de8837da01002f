// The sum of what ranks give, in rank order and in fp32, rounded once: the same bits whatever carries the bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu_optim/gradient.h"
#include "tiering/state_layout.h"

namespace penstock::engine {

// Of `count` elements, `values_of(rank)` their values of each rank; in pieces that stay in the cache: a value is read
// once, and a sum is written once.
template <typename ValuesOf>
void add_up_in_rank_order(const cpu_optim::GradientKernels& kernels, uint32_t ranks, Dtype dtype, uint64_t count,
                          const ValuesOf& values_of, Dtype target_dtype, std::byte* target) {
  constexpr uint64_t kElements = 4096;  // in fp32 half of a first-level cache
  std::vector<float> sums(std::min(kElements, count));
  auto* const sum_bytes = reinterpret_cast<std::byte*>(sums.data());
  for (uint64_t at = 0; at < count; at += kElements) {
    const uint64_t now = std::min(kElements, count - at);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const std::byte* const values = values_of(rank) + at * bytes_of(dtype);
      if (rank == 0) {
        kernels.cast(dtype, values, Dtype::fp32, sum_bytes, now);
      } else {
        kernels.accumulate(dtype, values, sums.data(), now);
      }
    }
    kernels.cast(Dtype::fp32, sum_bytes, target_dtype, target + at * bytes_of(target_dtype), now);
  }
}

}  // namespace penstock::engine
