#include "tiering/plan/rank_memory.h"

#include <algorithm>
#include <vector>

#include "tiering/plan/pass_bytes.h"
#include "tiering/plan/sum_layout.h"

namespace penstock {
namespace {

uint64_t gathered_weight_bytes(const Workload& workload) {
  const uint64_t value = bytes_of(workload.form.weight) * workload.ranks;
  uint64_t all = 0, two = 0, before = 0;
  for (const Unit& unit : workload.units) all += unit.elements * value;
  if (workload.keeps_weights) return all;
  auto weights_of = [&](const Use& use) {
    uint64_t bytes = 0;
    for (uint32_t unit : use.units) bytes += workload.units[unit].elements * value;
    return bytes;
  };
  // Between groups of micro-batches, backward's last use is before the first of all.
  const size_t last = first_trained_use(workload);
  if (workload.micro_batches > 1 && last < workload.uses.size()) before = weights_of(workload.uses[last]);
  for (const Use& use : workload.uses) {
    const uint64_t here = weights_of(use);
    two = std::max(two, before + here);
    before = here;
  }
  return two;
}

}  // namespace

uint64_t sum_bytes(const PlanRequest& request) {
  const uint32_t most = request.workload.micro_batches;
  uint64_t bytes =
      lay_out_sums(request.workload, request.choices.micro_batch_group.value_or(most), GivenIn::elsewhere).bytes;
  if (!request.choices.micro_batch_group)
    bytes = std::max(bytes, lay_out_sums(request.workload, 1, GivenIn::elsewhere).bytes);
  return bytes;
}

RankMemoryBytes rank_memory(const PlanRequest& request) {
  const Workload& workload = request.workload;
  const bool several = workload.ranks * workload.groups > 1;
  if (!several || workload.scope != StepScope::training || request.machine.copies_to_device()) return {};
  RankMemoryBytes memory;
  if (workload.ranks > 1) memory.gathered_bytes = gathered_weight_bytes(workload);
  uint64_t given = 0, added = 0, elements = 0, coded = 0, collected = 0;
  for (uint32_t use = 0; use < workload.uses.size(); ++use) {
    uint64_t given_here = 0, added_here = 0, coded_here = 0;
    for (uint32_t unit : workload.uses[use].units) {
      const uint64_t whole = workload.units[unit].elements * workload.ranks;
      if (workload.ranks > 1 && gathered_code(workload, unit)) coded_here += gathered_way_bytes(workload, unit, whole);
      const bool completes = workload.units[unit].trainable && uses_of(workload, unit).front() == use;
      if (!completes) continue;
      given_here += reduced_way_bytes(workload, whole);
      added_here += workload.units[unit].elements * bytes_of(workload.form.gradient);
      // As many pieces as there are ranks, one of each.
      if (reduced_code(workload)) collected = std::max(collected, reduced_way_bytes(workload, whole));
    }
    given = std::max(given, given_here);
    added = std::max(added, added_here);
    coded = std::max(coded, coded_here);
  }
  for (const Unit& unit : workload.units) elements += unit.elements;
  memory.gradient_bytes =
      given + added + sum_bytes(request) * workload.ranks + squares_bytes(elements * workload.ranks);
  memory.coded_bytes = coded + collected;
  return memory;
}

}  // namespace penstock
