#include "tiering/plan/plan_search.h"

#include <algorithm>
#include <cmath>

namespace penstock {
namespace {

constexpr double kDurabilityCostMost = 0.03;  // of the steps' time
constexpr double kStepsBetweenMost = 1e6;

std::vector<ActivationChoice> activation_choices(const PlanRequest& request) {
  using enum ActivationChoice;
  if (request.workload.pass == Pass::update_only) return {recompute};
  if (request.choices.activations) return {*request.choices.activations};
  // Without a device there is nowhere to offload to.
  if (request.machine.devices == 0) return {keep, recompute};
  return {keep, recompute, recompute_offload, offload};
}

// State that rests in host memory is updated in place, so where gradients are clipped not before the verdict: all at
// once, and the next forward waits. From the drives it is updated while backward runs.
bool waits_for_verdict(const PlanRequest& request, const Plan& plan) {
  return request.workload.clipping.on && request.workload.pass == Pass::training && plan.rests_in_host();
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
Result<Plan> largest_group(PlanRequest request) {
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
  auto consider = [&](Plan plan) {
    // No plan is faster than its computation.
    if (best && compute_s(plan) >= best->simulation.step_s) return;
    Simulation simulation = simulate(plan, request.machine, options);
    if (best && simulation.step_s >= best->simulation.step_s) return;
    best = PredictedPlan{std::move(plan), std::move(simulation)};
  };
  Status refusal;
  for (ActivationChoice activations : activation_choices(request)) {
    PlanRequest tried = request;
    tried.choices.activations = activations;
    Result<Plan> plan = largest_group(tried);
    if (!plan.ok()) {
      if (plan.status().code() != Code::kDoesNotFit) return plan.status();
      refusal = plan.status();
      continue;
    }
    const bool try_without = waits_for_verdict(request, *plan) && !request.choices.host_state_share;
    consider(std::move(*plan));
    if (!try_without) continue;
    tried.choices.host_state_share = 0;
    if (Result<Plan> without = largest_group(tried); without.ok()) consider(std::move(*without));
  }
  if (!best) return refusal;
  return std::move(*best);
}

Durability DurabilityCost::usual() const {
  const double steps = std::ceil(extra_s() / (kDurabilityCostMost * other_s));
  if (!(steps > 1)) return {};
  return {Durability::Kind::every, static_cast<uint32_t>(std::min(steps, kStepsBetweenMost))};
}

DurabilityCost durability_cost(Plan plan, const MachineProfile& machine, SimulationOptions options) {
  options.record_spans = false;
  auto step_s = [&](Durability::Kind kind) {
    plan.durability = {kind, 1};
    return simulate(plan, machine, options).step_s;
  };
  return {step_s(Durability::Kind::step), step_s(Durability::Kind::exit)};
}

PlanRequest decide_durability(PlanRequest request) {
  if (request.durability) return request;
  request.durability = Durability{};
  const Result<Plan> plan = make_plan(request);
  if (!plan.ok() || !plan->rests_in_host() || request.machine.drives.empty()) return request;

  PlanRequest relaxed = request;
  relaxed.durability = durability_cost(*plan, request.machine, {}).usual();
  // Updates ahead of the verdict are worth more than fewer writes.
  const bool speculates = !request.workload.clipping.on || slots_per_tile(relaxed) > 2;
  return speculates && make_plan(relaxed).ok() ? relaxed : request;
}

}  // namespace penstock
