#include "tiering/plan/sum_layout.h"

#include <algorithm>
#include <array>

#include "tiering/tier.h"

namespace penstock {

Dtype sum_dtype(const Workload& workload, uint32_t unit) {
  const bool is_alone = workload.micro_batches == 1 && count_uses_of(workload, unit) == 1;
  return is_alone ? workload.form.gradient : Dtype::fp32;
}

namespace {

// What ranks add up among themselves is not there when the pass ends.
bool last_stays(const Workload& workload, uint32_t unit) {
  if (workload.scope != StepScope::training || workload.ranks * workload.groups > 1) return false;
  const std::vector<uint32_t> uses = uses_of(workload, unit);
  return uses.size() == 1 && workload.uses[uses.front()].gradients_stay;
}

}  // namespace

SumLayout lay_out_sums(const Workload& workload, uint32_t group, GivenIn given) {
  SumLayout layout;
  layout.offset_bytes.resize(workload.units.size());
  layout.last_stays.resize(workload.units.size());
  // Where all micro-batches pass through a unit before the next, the sum of a unit with one use ends before that of the
  // next but one begins: every second shares a place.
  const bool vertical = group >= workload.micro_batches;
  std::array<uint64_t, 2> shared_bytes{};
  std::vector<uint32_t> sharing;
  for (uint32_t unit = 0; unit < workload.units.size(); ++unit) {
    const Unit& shape = workload.units[unit];
    const uint32_t uses = count_uses_of(workload, unit);
    const bool comes_at_once = workload.scope == StepScope::update_only && workload.micro_batches * uses <= 1;
    if (!shape.trainable || (comes_at_once && !shape.gradient_in_parts)) continue;
    layout.last_stays[unit] = given == GivenIn::host_memory && last_stays(workload, unit);
    if (layout.last_stays[unit] && workload.micro_batches == 1) continue;
    const uint64_t bytes = round_up(shape.elements * bytes_of(sum_dtype(workload, unit)), kAlignmentBytes);
    if (vertical && uses == 1 && !shape.gradient_in_parts) {
      uint64_t& most = shared_bytes[sharing.size() % 2];
      most = std::max(most, bytes);
      sharing.push_back(unit);
      continue;
    }
    for (size_t use = 0; use < uses; ++use) {
      layout.offset_bytes[unit].push_back(layout.bytes);
      layout.bytes += bytes;
    }
  }
  for (size_t i = 0; i < sharing.size(); ++i) {
    layout.offset_bytes[sharing[i]] = {layout.bytes + (i % 2) * shared_bytes[0]};
  }
  layout.bytes += shared_bytes[0] + shared_bytes[1];
  return layout;
}

}  // namespace penstock
