// How fast the processor updates: the one rate of a machine's profile that does not come from a drive.
#pragma once

#include "tiering/state_layout.h"
#include "tiering/tier.h"

namespace penstock::tools {

constexpr uint64_t kUpdateMemoryBytes = 96 * kMiB;  // more than any cache holds

// Memory traffic of the update pass in 10^9 B/s, counted as the planner counts it. Takes a second at most and about
// `memory_bytes`. `threads`: 0 for one on each processor; refused where the system does not grant them. A build without
// what runs steps passes over memory in place and computes next to nothing.
Result<double> measure_update_gbps(const StateForm& form, uint32_t threads, uint64_t memory_bytes = kUpdateMemoryBytes);

}  // namespace penstock::tools
