#include "tiering/plan/plan_search.h"

#include <algorithm>
#include <cmath>

namespace penstock {
namespace {

// Without drives there are no rates to tell by: all plans are alike, and the first that fits is taken.
Simulation simulate_if_known(const Plan& plan, const MachineProfile& machine, const SimulationOptions& options) {
  return machine.drives.empty() ? Simulation() : simulate(plan, machine, options);
}

constexpr double kDurabilityCostMost = 0.03;  // of the steps' time
constexpr double kStepsBetweenMost = 1e6;
// Below this, times of plans are alike, and bytes decide.
constexpr double kAlike = 1e-3;

std::vector<ActivationChoice> activation_choices(const PlanRequest& request) {
  using enum ActivationChoice;
  if (request.workload.scope == StepScope::update_only) return {recompute};
  if (request.choices.activations) return {*request.choices.activations};
  // Without a device there is nowhere to offload to.
  if (request.machine.devices == 0 || !request.stores_activations) return {keep, recompute};
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

struct Timed {
  Plan plan;
  Simulation simulation;
};

// The best of the plans that were considered.
class Best {
 public:
  Best(const MachineProfile& machine, const SimulationOptions& options) : machine_(machine), options_(options) {}

  void consider(Plan plan, const PlanChoices& choices) {
    // No plan is faster than its computation.
    if (best_ && compute_s(plan) > best_->simulation.step_s * (1 + kAlike)) return;
    Simulation simulation = simulate_if_known(plan, machine_, options_);
    if (best_ && !is_better(plan, simulation)) return;
    best_.emplace(Timed{std::move(plan), std::move(simulation)});
    choices_ = choices;
  }
  // By which the best was made, but for its micro-batch group.
  const PlanChoices& choices() const { return choices_; }
  std::optional<Timed>& get() { return best_; }

 private:
  bool is_better(const Plan& plan, const Simulation& simulation) const {
    const double step_s = simulation.step_s, best_s = best_->simulation.step_s;
    if (std::abs(step_s - best_s) > kAlike * best_s) return step_s < best_s;
    if (plan.written_bytes() != best_->plan.written_bytes()) return plan.written_bytes() < best_->plan.written_bytes();
    return plan.read_bytes() < best_->plan.read_bytes();
  }

  const MachineProfile& machine_;
  const SimulationOptions& options_;
  std::optional<Timed> best_;
  PlanChoices choices_;
};

// State that rests in host memory is updated in place, so where gradients are clipped not before the verdict: all at
// once, and the next forward waits. From the drives it is updated while backward runs.
bool waits_for_verdict(const PlanRequest& request, const Plan& plan) {
  return request.workload.clipping.may_take_back() && request.workload.scope == StepScope::training &&
         plan.has_state_in_memory();
}

// Of the state, instead of as much as fits: none, and of models whose plans are soon simulated, parts.
std::vector<double> smaller_shares(size_t plan_moves) {
  constexpr size_t kMovesOfSmallPlans = 20'000;
  if (plan_moves > kMovesOfSmallPlans) return {0};
  return {0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875};
}

// What durability costs beside a step of unknown time is unknown too.
bool rates_are_known(const PlanRequest& request) {
  const std::vector<Use>& uses = request.workload.uses;
  const bool computes = request.workload.scope == StepScope::update_only ||
                        std::any_of(uses.begin(), uses.end(), [](const Use& use) { return use.forward_s > 0; });
  return !request.machine.drives.empty() && request.machine.host_gbps > 0 && computes;
}

// Where not all uses can keep what they have made, some may.
void consider_keeping_some(const PlanRequest& recomputing, Best& best) {
  const size_t uses = recomputing.workload.uses.size();
  PlanRequest tried = recomputing;
  auto with = [&](size_t keeping) {
    tried.choices.keep_share = static_cast<double>(keeping) / static_cast<double>(uses);
    return largest_group(tried);
  };
  size_t low = 0, high = uses - 1;
  while (low < high) {
    const size_t middle = low + (high - low + 1) / 2;
    if (with(middle).ok()) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  if (low == 0) return;
  if (Result<Plan> plan = with(low); plan.ok()) best.consider(std::move(*plan), tried.choices);
}

// Backward moves most of a step's bytes in two thirds of its time. What is updated ahead of the next forward evens that
// out, for memory in which its gradients wait.
void consider_deferring(const PlanRequest& request, Best& best) {
  if (request.workload.scope != StepScope::training || request.choices.deferred_share) return;
  PlanRequest tried = request;
  tried.choices = best.choices();
  for (double share : {0.25, 0.5}) {
    tried.choices.deferred_share = share;
    if (Result<Plan> plan = largest_group(tried); plan.ok()) best.consider(std::move(*plan), tried.choices);
  }
}

// With its durability given: every step counts as durable.
Result<Timed> fastest_plan(PlanRequest request, const SimulationOptions& options) {
  request.slots = slots_per_tile(request);
  const Durability durability = request.durability.value_or(Durability{});
  request.durability = Durability{};
  Best best(request.machine, options);
  Status refusal;
  bool keeps_all = false;
  for (ActivationChoice activations : activation_choices(request)) {
    PlanRequest tried = request;
    tried.choices.activations = activations;
    Result<Plan> plan = largest_group(tried);
    if (!plan.ok()) {
      if (plan.status().code() != Code::kDoesNotFit) return plan.status();
      refusal = plan.status();
      continue;
    }
    keeps_all |= activations == ActivationChoice::keep;
    const bool try_without = waits_for_verdict(request, *plan) && !request.choices.host_state_share;
    const size_t plan_moves = plan->moves.size();
    best.consider(std::move(*plan), tried.choices);
    for (double share : try_without ? smaller_shares(plan_moves) : std::vector<double>{}) {
      PlanRequest less = tried;
      less.choices.host_state_share = share;
      if (Result<Plan> other = largest_group(less); other.ok()) best.consider(std::move(*other), less.choices);
    }
    const bool may_keep_some = !request.choices.activations && !request.choices.keep_share && !keeps_all &&
                               request.workload.uses.size() > 1 && recomputes(activations);
    if (may_keep_some) consider_keeping_some(tried, best);
  }
  if (!best.get()) return refusal;
  consider_deferring(request, best);
  Timed found = std::move(*best.get());
  found.plan.durability = durability;
  return found;
}

Simulation simulate_undurable(Plan plan, const MachineProfile& machine, SimulationOptions options) {
  plan.durability = {Durability::Kind::exit, 1};
  options.record_spans = false;
  return simulate_if_known(plan, machine, options);
}

ChosenPlan chosen(Timed found, const PlanRequest& request, const SimulationOptions& options) {
  ChosenPlan result{std::move(found.plan), slots_per_tile(request), std::move(found.simulation), {}};
  const bool alike = result.plan.durability.kind == Durability::Kind::step || !result.plan.has_state_in_memory();
  result.other = alike ? result.durable : simulate_undurable(result.plan, request.machine, options);
  return result;
}

}  // namespace

double ChosenPlan::step_s() const {
  const double share = plan.durability.durable_share();
  return share * durable.step_s + (1 - share) * other.step_s;
}

double predicted_step_s(const Plan& plan, const MachineProfile& machine) {
  Plan durable = plan;
  durable.durability = Durability{};
  const double durable_s = simulate_if_known(durable, machine, {}).step_s;
  const double share = plan.durability.durable_share();
  if (share == 1 || !plan.has_state_in_memory()) return durable_s;
  return share * durable_s + (1 - share) * simulate_undurable(plan, machine, {}).step_s;
}

Durability usual_durability(double durable_s, double other_s) {
  const double extra_s = std::max(0.0, durable_s - other_s);
  const double steps = std::ceil(extra_s / (kDurabilityCostMost * other_s));
  if (!(steps > 1)) return {};
  return {Durability::Kind::every, static_cast<uint32_t>(std::min(steps, kStepsBetweenMost))};
}

Result<ChosenPlan> choose_plan(const PlanRequest& request, const SimulationOptions& options) {
  PENSTOCK_TRY(validate(request));
  PENSTOCK_TRY_ASSIGN(found, fastest_plan(request, options));
  if (request.durability || !found.plan.has_state_in_memory() || !rates_are_known(request)) {
    return chosen(std::move(found), request, options);
  }
  PlanRequest relaxed = request;
  const Simulation other = simulate_undurable(found.plan, request.machine, options);
  relaxed.durability = usual_durability(found.simulation.step_s, other.step_s);
  if (relaxed.durability->kind == Durability::Kind::step) return chosen(std::move(found), request, options);
  // Updates ahead of the verdict are worth more than fewer writes, and take a third slot where roots are rare.
  const bool speculates = !request.workload.clipping.may_take_back() || slots_per_tile(relaxed) > 2;
  if (!speculates) return chosen(std::move(found), request, options);
  if (slots_per_tile(relaxed) == slots_per_tile(request)) {
    found.plan.durability = *relaxed.durability;
    return chosen(std::move(found), relaxed, options);
  }
  Result<Timed> with_third_slot = fastest_plan(relaxed, options);
  if (!with_third_slot.ok()) return chosen(std::move(found), request, options);
  return chosen(std::move(*with_third_slot), relaxed, options);
}

}  // namespace penstock
