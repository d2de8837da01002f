// What a rank takes of host memory besides its shards where the CPU computes: it shares memory with the others, in
// which weights are gathered and gradients are added up.
#pragma once

#include <cstdint>

#include "tiering/plan/planner.h"

namespace penstock {

struct RankMemoryBytes {
  uint64_t gathered_bytes = 0;  // weights of two uses one after another, or of all that are kept
  // A use's gradients as this rank gives them and what it adds up, its own sums before that, and the norm's blocks.
  uint64_t gradient_bytes = 0;
  // A use's weights in codes, and gradients in codes, of all ranks, of what this one adds up of a unit.
  uint64_t coded_bytes = 0;
};

// Of the sums that a rank adds its own micro-batches up in, taken before the planner chooses a group.
uint64_t sum_bytes(const PlanRequest& request);

// Nothing where one rank trains, where only updates are planned, and where devices compute.
RankMemoryBytes rank_memory(const PlanRequest& request);

}  // namespace penstock
