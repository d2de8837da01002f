#include "tiering/plan/plan_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tiering/plan/plan_candidates.h"
#include "tiering/plan/plan_fit.h"

namespace penstock {
namespace {

// Without drives there are no rates to tell by: all plans are alike, and the first that fits is taken.
Simulation simulate_if_known(const Plan& plan, const MachineProfile& machine, const SimulationOptions& options) {
  return machine.drives.empty() ? Simulation() : simulate(plan, machine, options);
}

constexpr double kDurabilityCostMost = 0.03;  // of the steps' time
constexpr double kStepsBetweenMost = 1e6;
// Below this, times or bytes of plans are alike, and what comes next decides.
constexpr double kAlike = 1e-3;

bool is_more(double a, double b) { return a > b * (1 + kAlike); }

Simulation simulate_undurable(Plan& plan, const MachineProfile& machine, SimulationOptions options) {
  const Durability durability = plan.durability;
  plan.durability = {Durability::Kind::exit, 1};
  options.record_spans = false;
  Simulation other = simulate_if_known(plan, machine, options);
  plan.durability = durability;
  return other;
}

PredictedSteps steps_of(const Simulation& simulation) {
  if (simulation.steps.size() < 2) return {};  // rates are unknown
  const SimulatedStep& step = simulation.steps[1];
  return {simulation.step_s, static_cast<double>(step.read_bytes), static_cast<double>(step.written_bytes),
          static_cast<double>(step.found_bytes)};
}

// Of a plan's steps on average, of which some are durable.
PredictedSteps predicted_steps(Plan plan, const MachineProfile& machine, const SimulationOptions& options) {
  const double share = std::exchange(plan.durability, Durability{}).durable_share();
  const PredictedSteps all = steps_of(simulate_if_known(plan, machine, options));
  if (share == 1 || !plan.has_state_in_memory()) return all;
  const PredictedSteps none = steps_of(simulate_undurable(plan, machine, options));
  const auto mean = [share](double of_durable, double of_other) { return share * of_durable + (1 - share) * of_other; };
  return {mean(all.step_s, none.step_s), mean(all.read_bytes, none.read_bytes),
          mean(all.written_bytes, none.written_bytes), mean(all.found_bytes, none.found_bytes)};
}

// What durability costs beside a step of unknown time is unknown too.
bool rates_are_known(const PlanRequest& request) {
  const std::vector<Use>& uses = request.workload.uses;
  const bool computes = request.workload.scope == StepScope::update_only ||
                        std::any_of(uses.begin(), uses.end(), [](const Use& use) { return use.forward_s > 0; });
  return !request.machine.drives.empty() && request.machine.host_gbps > 0 && computes;
}

struct Timed {
  Durability durability;
  Simulation durable, other;  // as in ChosenPlan

  double step_s() const {
    const double share = durability.durable_share();
    return share * durable.step_s + (1 - share) * other.step_s;
  }
};

// Durability that is left open is the usual one.
Timed time_steps(Plan& plan, const PlanRequest& request, const SimulationOptions& options) {
  Timed timed;
  plan.durability = Durability{};
  timed.durable = simulate_if_known(plan, request.machine, options);
  timed.durability = request.durability.value_or(Durability{});
  const bool may_differ = !request.durability || request.durability->kind != Durability::Kind::step;
  timed.other =
      may_differ && plan.has_state_in_memory() ? simulate_undurable(plan, request.machine, options) : timed.durable;
  if (!request.durability) timed.durability = usual_durability(timed.durable.step_s, timed.other.step_s);
  plan.durability = timed.durability;
  return timed;
}

struct Tried {
  Candidate candidate;
  Timed timed;
  double step_s = 0, written_bytes = 0, read_bytes = 0, memory_bytes = 0;
};

// By time, then bytes written to the drives and read from them, then memory. Of those that are alike in all, the first.
// Each is compared with the least of all, so that many that are alike do not add up to a difference.
const Tried* best_of(const std::vector<Tried>& all) {
  std::vector<const Tried*> left;
  for (const Tried& one : all) left.push_back(&one);
  for (double Tried::*cost : {&Tried::step_s, &Tried::written_bytes, &Tried::read_bytes, &Tried::memory_bytes}) {
    double least = std::numeric_limits<double>::infinity();
    for (const Tried* one : left) least = std::min(least, one->*cost);
    std::erase_if(left, [&](const Tried* one) { return is_more(one->*cost, least); });
  }
  return left.empty() ? nullptr : left.front();
}

// Plans with the same outline move and take the same, and so take as long.
struct Outline {
  explicit Outline(const Plan& plan)
      : moves(plan.moves.size()),
        group(plan.micro_batch_group),
        read_bytes(plan.read_bytes()),
        written_bytes(plan.written_bytes()),
        pool_pieces(plan.pool_pieces) {
    for (Tier tier : kTiers) needed_bytes.push_back(plan.needed_bytes(tier));
    for (const Move& move : plan.moves) compute_s += move.lane == Lane::compute ? move.seconds : 0;
  }
  bool operator==(const Outline&) const = default;

  size_t moves;
  uint32_t group;
  uint64_t read_bytes, written_bytes;
  std::array<uint64_t, kPools> pool_pieces;
  std::vector<uint64_t> needed_bytes;
  double compute_s = 0;
};

// Plans that have been timed.
class Trials {
 public:
  Trials(const PlanRequest& request, const SimulationOptions& options) : request_(request), options_(options) {}

  // Unless one like it has been timed, or it computes for longer than the best takes.
  void time(const Candidate& candidate, Plan& plan) {
    Outline outline(plan);
    if (!all_.empty() && is_more(outline.compute_s, best().step_s)) return;
    if (std::ranges::find(outlines_, outline) != outlines_.end()) return;
    moves_ += outline.moves;
    outlines_.push_back(std::move(outline));
    Tried tried{candidate, time_steps(plan, request_, options_)};
    tried.step_s = tried.timed.step_s();
    tried.written_bytes = plan.mean_written_bytes(tried.timed.durability);
    tried.read_bytes = static_cast<double>(plan.read_bytes());
    // Computing again spares memory, and where it takes is unknown no time.
    if (rates_are_known(request_)) {
      tried.memory_bytes = static_cast<double>(plan.needed_bytes(Tier::host) + plan.needed_bytes(Tier::device));
    }
    all_.push_back(std::move(tried));
  }
  const std::vector<Tried>& all() const { return all_; }
  const Tried& best() const { return *best_of(all_); }
  size_t moves() const { return moves_; }  // of all plans that were timed

 private:
  const PlanRequest& request_;
  const SimulationOptions& options_;
  std::vector<Outline> outlines_;
  std::vector<Tried> all_;
  size_t moves_ = 0;
};

// Of all plans: nothing computed again.
double least_compute_s(const Workload& workload) {
  double sum = 0;
  for (const Use& use : workload.uses) sum += (use.forward_s + use.backward_s) * workload.micro_batches;
  return sum;
}

// Tries candidates one after another, each a choice away from the best so far.
class Search {
 public:
  Search(const PlanRequest& request, uint64_t tile_factor, const SimulationOptions& options)
      : request_(request),
        space_(request, tile_factor),
        trials_(request, options),
        least_s_(least_compute_s(request.workload)) {}

  // Refuses where the first candidates do not fit.
  Status run() {
    Status refusal;
    for (const Candidate& candidate : space_.beginnings()) {
      Status status = try_out(candidate);
      if (status.ok() && request_.machine.drives.empty()) return Status();
      if (status.ok()) continue;
      if (status.code() != Code::kDoesNotFit) return status;
      refusal = std::move(status);
    }
    if (trials_.all().empty()) return refusal;
    // Downhill from the best, and from the best that has its activations in another way, and from the best that rests
    // on the device or does not, unlike it: there may be a valley for each.
    const std::vector<Tried> begun = trials_.all();
    const Tried first = *best_of(begun);
    descend(first);
    descend_from_best(
        begun, [&](const PlanChoices& choices) { return choices.activations != first.candidate.choices.activations; });
    descend_from_best(begun, [&](const PlanChoices& choices) {
      return rests_on_device(choices) != rests_on_device(first.candidate.choices);
    });
    return Status();
  }

  const std::vector<Tried>& all() const { return trials_.all(); }

 private:
  static constexpr int kRounds = 3;
  // Simulated in a descent, some four steps each: a quarter of a second, and more where steps take minutes, because a
  // plan of many micro-batches has as many moves as some tens of others.
  static constexpr double kMovesMost = 200'000, kMovesPerStepSecond = 2'000;

  static bool rests_on_device(const PlanChoices& choices) { return choices.device_share.value_or(0) > 0; }

  template <typename Among>
  void descend_from_best(std::vector<Tried> begun, Among among) {
    std::erase_if(begun, [&](const Tried& one) { return !among(one.candidate.choices); });
    if (const Tried* best = best_of(begun)) descend(*best);
  }

  void descend(Tried current) {
    moves_most_ = trials_.moves() + static_cast<size_t>(std::max(kMovesMost, current.step_s * kMovesPerStepSecond));
    for (int round = 0; round < kRounds; ++round) {
      const Candidate before = current.candidate;
      for (size_t dimension = 0; dimension < CandidateSpace::kDimensions; ++dimension) {
        std::vector<Tried> beside = try_along(dimension, current.candidate);
        beside.insert(beside.begin(), std::move(current));
        current = *best_of(beside);
      }
      if (current.candidate == before) return;
    }
  }

  bool is_over() const { return trials_.moves() > moves_most_ || !is_more(trials_.best().step_s, least_s_); }

  std::vector<Tried> try_along(size_t dimension, const Candidate& from) {
    const size_t count = trials_.all().size();
    if (is_over()) return {};
    for (const Candidate& candidate : space_.along(dimension, from)) {
      if (is_over()) break;
      (void)try_out(candidate).ok();  // what does not fit is no candidate
    }
    return {trials_.all().begin() + static_cast<ptrdiff_t>(count), trials_.all().end()};
  }

  Status try_out(const Candidate& candidate) {
    if (std::ranges::find(seen_, candidate) != seen_.end()) return Status();
    seen_.push_back(candidate);
    PENSTOCK_TRY_ASSIGN(plan, make_plan(space_.request_of(candidate)));
    trials_.time(candidate, plan);
    return Status();
  }

  const PlanRequest& request_;
  const CandidateSpace space_;
  Trials trials_;
  const double least_s_;
  std::vector<Candidate> seen_;
  size_t moves_most_ = 0;
};

// How many times as large tiles are in a sketch: a plan of few tiles that takes about as long, for a hundredth of the
// work. 1 where the plan has few tiles anyway.
uint64_t sketch_factor(const PlanRequest& request) {
  constexpr uint64_t kTilesOfSketches = 1000;
  const TileMap tiles(request.workload, tile_sizes_worth_trying(request).front());
  uint64_t factor = 1;
  while (tiles.size() / factor > kTilesOfSketches) factor *= 2;
  return factor;
}

struct Found {
  Candidate candidate;
  Plan plan;
  Timed timed;
};

// Makes plans in full, the one with the fastest sketch first, as long as a sketch says that one may be faster yet. One
// is in memory at a time, which for millions of moves counts beside a step: the best is made again where it was not the
// last.
Result<Found> best_in_full(std::vector<Tried> sketches, const PlanRequest& request, const SimulationOptions& options) {
  // Mostly; a plan that is slower than its sketch by more leaves the others in the race.
  constexpr double kSketchError = 0.01;
  constexpr size_t kMovesMost = 200'000;
  const CandidateSpace space(request);
  Trials trials(request, options);
  std::optional<Plan> last;
  Candidate of_last;
  Status refusal;
  while (const Tried* next = best_of(sketches)) {
    const bool has_one = !trials.all().empty();
    if (has_one && (trials.moves() > kMovesMost || next->step_s > trials.best().step_s * (1 + kSketchError))) break;
    of_last = next->candidate;
    std::erase_if(sketches, [&](const Tried& one) { return one.candidate == of_last; });
    last.reset();
    Result<Plan> plan = make_plan(space.request_of(of_last));
    if (!plan.ok()) {
      refusal = plan.status();
      continue;
    }
    trials.time(of_last, *plan);
    last = *std::move(plan);
  }
  if (trials.all().empty()) return refusal;
  const Tried& best = trials.best();
  if (!last || of_last != best.candidate) {
    last.reset();
    PENSTOCK_TRY_ASSIGN(again, make_plan(space.request_of(best.candidate)));
    again.durability = best.timed.durability;
    last = std::move(again);
  }
  return Found{best.candidate, *std::move(last), best.timed};
}

// Plans are chosen by steps that speculate. Those that wait for their verdict instead read ahead into what is spare;
// for the others nothing changes.
Result<Found> with_ahead_windows(Found found, const PlanRequest& request) {
  const uint64_t needed = found.plan.needed_bytes(Tier::host);
  // Of a smaller budget, the rest is left alone on purpose.
  const bool has_spare = found.candidate.host_budget_share == 1 && needed < request.budgets.host_bytes;
  if (!has_spare || !rates_are_known(request)) return found;
  const CandidateSpace space(request);
  const std::optional<Candidate> with =
      space.with_ahead_windows(found.candidate, found.plan, request.budgets.host_bytes - needed);
  if (!with) return found;
  const uint64_t read_bytes = found.plan.read_bytes(), written_bytes = found.plan.written_bytes();
  { const Plan freed = std::move(found.plan); }  // one is in memory at a time
  Result<Plan> plan = make_plan(space.request_of(*with));
  if (plan.ok() && plan->read_bytes() == read_bytes && plan->written_bytes() == written_bytes) {
    found.candidate = *with;
  } else {
    plan = make_plan(space.request_of(found.candidate));
    PENSTOCK_TRY(plan.status());
  }
  plan->durability = found.timed.durability;
  found.plan = *std::move(plan);
  return found;
}

Result<Found> search_with(uint64_t tile_factor, const PlanRequest& request, const SimulationOptions& options) {
  SimulationOptions without_spans = options;
  without_spans.record_spans = false;
  Search search(request, tile_factor, without_spans);
  PENSTOCK_TRY(search.run());
  PENSTOCK_TRY_ASSIGN(found, tile_factor > 1 ? best_in_full(search.all(), request, options)
                                             : best_in_full({*best_of(search.all())}, request, options));
  return with_ahead_windows(std::move(found), request);
}

Result<Found> fastest_plan(PlanRequest request, const SimulationOptions& options) {
  request.slots = slots_per_tile(request);
  const uint64_t factor = options.gradient_s ? 1 : sketch_factor(request);  // told by tile
  if (factor > 1) {
    Result<Found> found = search_with(factor, request, options);
    if (found.ok() || found.status().code() != Code::kDoesNotFit) return found;
  }
  return search_with(1, request, options);
}

ChosenPlan chosen(Found found, uint32_t slots) {
  const std::vector<SimulatedStep>& steps = found.timed.durable.steps;
  if (steps.size() > 1) found.plan.found_bytes = steps[1].found_bytes;
  return {std::move(found.plan), slots, std::move(found.timed.durable), std::move(found.timed.other)};
}

Result<ChosenPlan> chosen_at(const PlanRequest& request, const SimulationOptions& options) {
  PENSTOCK_TRY_ASSIGN(found, fastest_plan(request, options));
  return chosen(std::move(found), slots_per_tile(request));
}

uint32_t slots_where_relaxed(PlanRequest request) {
  request.durability = Durability{Durability::Kind::every, 2};
  return slots_per_tile(request);
}

}  // namespace

double ChosenPlan::step_s() const {
  const double share = plan.durability.durable_share();
  return share * durable.step_s + (1 - share) * other.step_s;
}

double predicted_step_s(Plan plan, const MachineProfile& machine) {
  return predicted_steps(std::move(plan), machine, {}).step_s;
}

PredictedSteps predicted_taken_back(const Plan& plan, const MachineProfile& machine, Verdict verdict, bool speculate) {
  SimulationOptions options;
  options.verdict = [verdict](uint64_t) { return verdict; };
  options.speculate = [speculate](uint64_t) { return speculate; };
  return predicted_steps(plan, machine, options);
}

Durability usual_durability(double durable_s, double other_s) {
  const double extra_s = std::max(0.0, durable_s - other_s);
  const double steps = std::ceil(extra_s / (kDurabilityCostMost * other_s));
  if (!(steps > 1)) return {};
  return {Durability::Kind::every, static_cast<uint32_t>(std::min(steps, kStepsBetweenMost))};
}

Result<ChosenPlan> choose_plan(const PlanRequest& request, const SimulationOptions& options) {
  PENSTOCK_TRY(validate(request));
  if (request.durability) return chosen_at(request, options);
  PlanRequest durable = request, relaxed = request;
  durable.durability = Durability{};
  relaxed.slots = slots_where_relaxed(request);
  // Updates ahead of the verdict are worth more than fewer writes, and take a third slot where roots are rare.
  const bool speculates = !request.workload.clipping.may_take_back() || relaxed.slots > 2;
  if (!speculates || !rates_are_known(request)) return chosen_at(durable, options);
  Result<Found> found = fastest_plan(relaxed, options);
  if (!found.ok()) {
    if (found.status().code() == Code::kDoesNotFit) return chosen_at(durable, options);
    return found.status();
  }
  if (found->timed.durability.kind != Durability::Kind::step || relaxed.slots == slots_per_tile(durable)) {
    return chosen(std::move(*found), relaxed.slots);
  }
  // Durable each step, it needs no third slot.
  PENSTOCK_TRY_ASSIGN(plan, make_plan(CandidateSpace(durable).request_of(found->candidate)));
  found->plan = std::move(plan);
  return chosen(std::move(*found), slots_per_tile(durable));
}

}  // namespace penstock
