// The sum of what ranks give, in rank order and in fp32, rounded once: the same bits whatever carries the bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu_optim/gradient.h"
#include "runtime/engine/ranks/rank_place.h"
#include "tiering/state_layout.h"

namespace penstock::engine {

// Of `count` elements, `values_of(rank)` their values of each rank.
template <typename ValuesOf>
void add_up_in_rank_order(const cpu_optim::GradientKernels& kernels, uint32_t ranks, Dtype dtype, uint64_t count,
                          const ValuesOf& values_of, Dtype target_dtype, std::byte* target) {
  std::array<const std::byte*, kRanksMax> values;
  for (uint32_t rank = 0; rank < ranks; ++rank) values[rank] = values_of(rank);
  kernels.sum(dtype, {values.data(), ranks}, target_dtype, target, count);
}

}  // namespace penstock::engine
