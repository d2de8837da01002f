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
  uint64_t bytes = lay_out_sums(request.workload, request.choices.micro_batch_group.value_or(most)).bytes;
  if (!request.choices.micro_batch_group) bytes = std::max(bytes, lay_out_sums(request.workload, 1).bytes);
  return bytes;
}

RankMemoryBytes rank_memory(const PlanRequest& request) {
  const Workload& workload = request.workload;
  const bool several = workload.ranks * workload.groups > 1;
  if (!several || workload.scope != StepScope::training || request.machine.devices > 0) return {};
  RankMemoryBytes memory;
  if (workload.ranks > 1) memory.gathered_bytes = gathered_weight_bytes(workload);
  uint64_t given = 0, elements = 0;
  for (uint32_t use = 0; use < workload.uses.size(); ++use) {
    uint64_t here = 0;
    for (uint32_t unit : workload.uses[use].units) {
      const bool completes = workload.units[unit].trainable && uses_of(workload, unit).front() == use;
      if (completes) here += workload.units[unit].elements * bytes_of(workload.form.gradient);
    }
    given = std::max(given, here);
  }
  for (const Unit& unit : workload.units) elements += unit.elements;
  memory.gradient_bytes =
      given * (workload.ranks + 1) + sum_bytes(request) * workload.ranks + squares_bytes(elements * workload.ranks);
  return memory;
}

}  // namespace penstock
