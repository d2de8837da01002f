#include "tiering/plan/plan_search.h"

#include <algorithm>
#include <cmath>

namespace penstock {
namespace {

constexpr double kDurabilityCostMost = 0.03;  // of the steps' time
constexpr double kStepsBetweenMost = 1e6;
// Below this, times of plans are alike, and bytes decide.
constexpr double kAlike = 1e-3;

std::vector<ActivationChoice> activation_choices(const PlanRequest& request) {
  using enum ActivationChoice;
  if (request.workload.pass == Pass::update_only) return {recompute};
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

// A plan, and the choices that make it.
struct Candidate {
  Plan plan;
  PlanChoices choices;
};

// A larger group moves fewer bytes, so the first that fits is the one.
Result<Candidate> largest_group(PlanRequest request) {
  Status refusal;
  for (uint32_t group : micro_batch_groups(request)) {
    request.choices.micro_batch_group = group;
    Result<Plan> plan = make_plan(request);
    if (plan.ok()) return Candidate{std::move(*plan), request.choices};
    if (plan.status().code() != Code::kDoesNotFit) return plan.status();
    refusal = plan.status();
  }
  return refusal;
}

struct Timed {
  Plan plan;
  PlanChoices choices;
  Simulation simulation;
};

// The best of the plans that were considered.
class Best {
 public:
  Best(const MachineProfile& machine, const SimulationOptions& options) : machine_(machine), options_(options) {}

  // Whether it is the best so far.
  bool consider(Candidate candidate) {
    Plan& plan = candidate.plan;
    // No plan is faster than its computation.
    if (best_ && compute_s(plan) > best_->simulation.step_s * (1 + kAlike)) return false;
    // Without drives there are no rates to tell by: the first that fits.
    Simulation simulation;
    if (!machine_.drives.empty()) simulation = simulate(plan, machine_, options_);
    if (best_ && !is_better(plan, simulation)) return false;
    best_.emplace(Timed{std::move(plan), std::move(candidate.choices), std::move(simulation)});
    return true;
  }
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
};

// State that rests in host memory is updated in place, so where gradients are clipped not before the verdict: all at
// once, and the next forward waits. From the drives it is updated while backward runs.
bool waits_for_verdict(const PlanRequest& request, const Plan& plan) {
  return request.workload.clipping.on() && request.workload.pass == Pass::training && plan.rests_in_host();
}

constexpr size_t kMovesOfSmallPlans = 20'000;  // that are soon simulated

// Of the state, instead of as much as fits: none, and in small plans parts.
std::vector<double> smaller_shares(size_t plan_moves) {
  if (plan_moves > kMovesOfSmallPlans) return {0};
  return {0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875};
}

// What durability costs beside a step of unknown time is unknown too.
bool rates_are_known(const PlanRequest& request) {
  const std::vector<Use>& uses = request.workload.uses;
  const bool computes = request.workload.pass == Pass::update_only ||
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
  if (Result<Candidate> some = with(low); some.ok()) best.consider(std::move(*some));
}

// What the best plan chose or filled memory by, made otherwise, one choice at a time. Nothing that is given changes.
class Neighbours {
 public:
  Neighbours(const PlanRequest& request, Best& best) : request_(request), best_(best) {}

  void consider_all() {
    if (request_.machine.drives.empty()) return;  // nothing to tell them apart by
    for (int round = 0; round < kRounds && best_.get()->plan.moves.size() <= kMovesOfSmallPlans; ++round) {
      is_improved_ = false;
      consider(&PlanChoices::host_state_share, {0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875});
      consider(&PlanChoices::retained_host_share, {0, 0.25, 0.5, 0.75, 1});
      if (request_.choices.weights == WeightRest::automatic) {
        for (WeightRest rest : {WeightRest::host, WeightRest::nvme}) {
          PlanChoices choices = best_.get()->choices;
          choices.weights = rest;
          consider(choices);
        }
      }
      if (request_.workload.pass == Pass::training) {
        consider(&PlanChoices::micro_batch_group, micro_batch_groups(request_));
        if (!request_.choices.activations) consider(&PlanChoices::keep_share, {0, 0.25, 0.5, 0.75, 1});
        consider(&PlanChoices::offload_host_share, {0, 0.5, 1});
      }
      if (!is_improved_) return;
    }
  }

 private:
  static constexpr int kRounds = 3;

  template <typename T>
  void consider(std::optional<T> PlanChoices::*choice, const std::vector<T>& values) {
    if (request_.choices.*choice) return;
    for (T value : values) {
      PlanChoices choices = best_.get()->choices;
      choices.*choice = value;
      consider(choices);
    }
  }
  void consider(const PlanChoices& choices) {
    PlanRequest tried = request_;
    tried.choices = choices;
    Result<Plan> plan = make_plan(tried);
    if (plan.ok()) is_improved_ |= best_.consider({std::move(*plan), choices});
  }

  const PlanRequest& request_;
  Best& best_;
  bool is_improved_ = false;
};

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
    Result<Candidate> fitting = largest_group(tried);
    if (!fitting.ok()) {
      if (fitting.status().code() != Code::kDoesNotFit) return fitting.status();
      refusal = fitting.status();
      continue;
    }
    keeps_all |= activations == ActivationChoice::keep;
    const bool try_without = waits_for_verdict(request, fitting->plan) && !request.choices.host_state_share;
    const size_t plan_moves = fitting->plan.moves.size();
    best.consider(std::move(*fitting));
    for (double share : try_without ? smaller_shares(plan_moves) : std::vector<double>{}) {
      PlanRequest less = tried;
      less.choices.host_state_share = share;
      if (Result<Candidate> other = largest_group(less); other.ok()) best.consider(std::move(*other));
    }
    const bool may_keep_some = !request.choices.activations && !request.choices.keep_share && !keeps_all &&
                               request.workload.uses.size() > 1 && recomputes(activations);
    if (may_keep_some) consider_keeping_some(tried, best);
  }
  if (!best.get()) return refusal;
  Neighbours(request, best).consider_all();
  Timed found = std::move(*best.get());
  found.plan.durability = durability;
  return found;
}

Simulation simulate_undurable(Plan plan, const MachineProfile& machine, SimulationOptions options) {
  plan.durability = {Durability::Kind::exit, 1};
  options.record_spans = false;
  return simulate(plan, machine, options);
}

ChosenPlan chosen(Timed found, const PlanRequest& request, const SimulationOptions& options) {
  ChosenPlan result{std::move(found.plan), slots_per_tile(request), std::move(found.simulation), {}};
  const bool alike = result.plan.durability.kind == Durability::Kind::step || !result.plan.rests_in_host();
  result.other = alike ? result.durable : simulate_undurable(result.plan, request.machine, options);
  return result;
}

}  // namespace

double ChosenPlan::step_s() const {
  const double share = plan.durability.durable_share();
  return share * durable.step_s + (1 - share) * other.step_s;
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
  if (request.durability || !found.plan.rests_in_host() || !rates_are_known(request)) {
    return chosen(std::move(found), request, options);
  }
  PlanRequest relaxed = request;
  const Simulation other = simulate_undurable(found.plan, request.machine, options);
  relaxed.durability = usual_durability(found.simulation.step_s, other.step_s);
  if (relaxed.durability->kind == Durability::Kind::step) return chosen(std::move(found), request, options);
  // Updates ahead of the verdict are worth more than fewer writes, and take a third slot where roots are rare.
  const bool speculates = !request.workload.clipping.on() || slots_per_tile(relaxed) > 2;
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
