// Where gradients are added up: the account of one region.
#pragma once

#include <cstdint>
#include <vector>

#include "tiering/unit.h"

namespace penstock {

// What a use's contributions to the unit's gradient wait in: fp32, to be added up; where there is never but one, the
// form's gradient dtype, into which it is rounded at once.
Dtype sum_dtype(const Workload& workload, uint32_t unit);

// Each use's sum of a unit lies apart, since the sum over micro-batches of each use comes before the sum over uses.
struct SumLayout {
  // By unit, then by the unit's uses in forward order: where that sum lies in the region. Empty for a unit that needs
  // none. Units whose sums are never under way together may share a place.
  std::vector<std::vector<uint64_t>> offset_bytes;
  // By unit: its last contribution stays where it was given until it is joined to the sum of those before it, and has
  // no place where there are none.
  std::vector<bool> last_stays;
  uint64_t bytes = 0;
};

// Whether gradients are handed over in host memory to an engine that adds them up there.
enum class GivenIn : uint8_t { host_memory, elsewhere };

// `group`: how many micro-batches pass through a unit before the next is used.
SumLayout lay_out_sums(const Workload& workload, uint32_t group, GivenIn given);

}  // namespace penstock
