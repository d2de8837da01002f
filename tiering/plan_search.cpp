#include "tiering/plan_search.h"

#include <algorithm>

namespace penstock {
namespace {

std::vector<ActivationChoice> activation_choices(const PlanRequest& request) {
  using enum ActivationChoice;
  if (request.workload.pass == Pass::update_only) return {recompute};
  if (request.choices.activations) return {*request.choices.activations};
  // Without a device there is nowhere to offload to.
  if (request.machine.devices == 0) return {keep, recompute};
  return {keep, recompute, recompute_offload, offload};
}

std::vector<uint32_t> micro_batch_groups(const PlanRequest& request) {
  if (request.choices.micro_batch_group) return {*request.choices.micro_batch_group};
  std::vector<uint32_t> groups;
  for (uint32_t group = request.workload.micro_batches; group > 1; group /= 2) groups.push_back(group);
  groups.push_back(1);
  return groups;
}

double compute_s(const Plan& plan) {
  double sum = 0;
  for (const Move& move : plan.moves) sum += move.lane == Lane::compute ? move.seconds : 0;
  return sum;
}

// A larger group moves fewer bytes, so the first that fits is the one.
Result<Plan> largest_group(PlanRequest request, ActivationChoice activations) {
  request.choices.activations = activations;
  Status refusal;
  for (uint32_t group : micro_batch_groups(request)) {
    request.choices.micro_batch_group = group;
    Result<Plan> plan = make_plan(request);
    if (plan.ok() || plan.status().code() != Code::kDoesNotFit) return plan;
    refusal = plan.status();
  }
  return refusal;
}

}  // namespace

Result<PredictedPlan> fastest_plan(const PlanRequest& request, const SimulationOptions& options) {
  std::optional<PredictedPlan> best;
  Status refusal;
  for (ActivationChoice activations : activation_choices(request)) {
    Result<Plan> plan = largest_group(request, activations);
    if (!plan.ok()) {
      if (plan.status().code() != Code::kDoesNotFit) return plan.status();
      refusal = plan.status();
      continue;
    }
    // No plan is faster than its computation.
    if (best && compute_s(*plan) >= best->simulation.step_s) continue;
    Simulation simulation = simulate(*plan, request.machine, options);
    if (best && simulation.step_s >= best->simulation.step_s) continue;
    best = PredictedPlan{std::move(*plan), std::move(simulation)};
  }
  if (!best) return refusal;
  return std::move(*best);
}

}  // namespace penstock
