#include "tools/plan/forecast.h"

#include <algorithm>
#include <cmath>

#include "tiering/plan/collective_moves.h"
#include "tiering/plan/pass_bytes.h"
#include "tools/penstock/quantity.h"
#include "tools/plan/forecast_request.h"
#include "tools/plan/least_plan.h"

namespace penstock::tools {
namespace {

constexpr uint32_t kSteps = 4, kStepsOfLargePlans = 3;
constexpr size_t kLargePlanMoves = 150'000;

StepTimes times_of(const Simulation& simulation) {
  const auto steps = static_cast<double>(simulation.steps.size());
  StepTimes times{simulation.step_s, simulation.busy_s, simulation.drives_busy_s / steps};
  for (double& busy_s : times.busy_s) busy_s /= steps;
  return times;
}

// The average where `share` of the steps are not `usual` but `other`.
void mix(StepTimes& average, const StepTimes& usual, const StepTimes& other, double share) {
  average.step_s += share * (other.step_s - usual.step_s);
  average.drives_busy_s += share * (other.drives_busy_s - usual.drives_busy_s);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    average.busy_s[lane] += share * (other.busy_s[lane] - usual.busy_s[lane]);
  }
}

class Forecaster {
 public:
  explicit Forecaster(Forecast& forecast) : forecast_(forecast) {}

  // Whether it fits, times and bytes.
  Status predict() {
    PENSTOCK_TRY(search());
    if (forecast_.fits) settle();
    return Status();
  }

  // What limits it. `asked` is the request before anything was filled in.
  void explain(const ForecastRequest& asked) {
    if (!forecast_.fits) {
      forecast_.remedy = remedy_for(asked, forecast_);
      return;
    }
    find_compute_bound();
    SimulationOptions options;
    options.steps = forecast_.simulated_steps;
    if (forecast_.unknown_rates().empty())
      forecast_.reliefs = find_reliefs(*forecast_.plan, forecast_.rank_request.machine, options);
  }

 private:
  // What follows from the plan, its simulation and its durability.
  void settle() {
    const StepTimes durable = times_of(forecast_.simulation);
    forecast_.times = durable;
    mix(forecast_.times, durable, forecast_.other_times, 1 - forecast_.durability.durable_share());
    settle_strikes();
    count_bytes();
    count_saved_bytes();
    forecast_.exit_commit = commit_at_exit(*forecast_.plan, forecast_.rank_request.machine);
  }

  Status search() {
    forecast_.simulated_steps = steps_for(forecast_.rank_request);
    SimulationOptions options;
    options.steps = forecast_.simulated_steps;
    options.record_spans = forecast_.request.record_spans;
    Result<ChosenPlan> found = choose_plan(forecast_.rank_request, options);
    if (found.ok()) keep(std::move(*found));
    if (found.ok() || found.status().code() != Code::kDoesNotFit) return found.status();
    PENSTOCK_TRY_ASSIGN(least, least_plan(forecast_.rank_request));
    forecast_.needed = std::move(least);
    return Status();
  }

  void keep(ChosenPlan found) {
    forecast_.fits = true;
    forecast_.plan = std::move(found.plan);
    forecast_.simulation = std::move(found.durable);
    forecast_.needed = forecast_.plan->budget_lines;
    forecast_.durability = forecast_.plan->durability;
    forecast_.other_times = times_of(found.other);
  }

  // A plan's moves are known only when it is made; its tiles tell enough.
  static uint32_t steps_for(const PlanRequest& request) {
    const uint64_t bytes = request.workload.elements() * 12;
    return bytes / (16 * kMiB) * 5 > kLargePlanMoves ? kStepsOfLargePlans : kSteps;
  }

  Simulation simulate_with(Durability::Kind kind, std::function<Verdict(uint64_t)> verdict = {},
                           bool speculate = true) {
    Plan plan = *forecast_.plan;
    plan.durability = {kind, 1};
    SimulationOptions options;
    options.steps = forecast_.simulated_steps;
    options.verdict = std::move(verdict);
    options.speculate = [speculate](uint64_t) { return speculate; };
    return simulate(plan, forecast_.rank_request.machine, options);
  }

  // Speculation pauses where strikes are a habit, so every other step is the most that is redone.
  void settle_strikes() {
    const Clipping& clipping = forecast_.request.clipping;
    if (!clipping.may_take_back() || clipping.strike_share <= 0) return;
    auto strike = [](uint64_t) { return Verdict::strike; };
    const bool speculate = clipping.strike_share <= 0.5;
    const Simulation struck = simulate_with(Durability::Kind::step, strike, speculate);
    const StepTimes calm_times = times_of(forecast_.simulation);
    StepTimes struck_times = times_of(struck);
    struck_times.step_s = std::max(struck_times.step_s, calm_times.step_s);
    forecast_.struck_step_s = struck_times.step_s;
    mix(forecast_.times, calm_times, struck_times, clipping.strike_share);
    // The norm is often known before all is updated, so less than everything is redone.
    const SimulatedStep& step = struck.steps[1];
    const SimulatedStep& calm = forecast_.simulation.steps[1];
    redone_read_bytes_ = static_cast<double>(step.read_bytes) - static_cast<double>(calm.read_bytes);
    redone_written_bytes_ = static_cast<double>(step.written_bytes) - static_cast<double>(calm.written_bytes);
  }

  void count_bytes() {
    const Plan& plan = *forecast_.plan;
    double read = static_cast<double>(plan.read_bytes());
    double written = plan.mean_written_bytes(forecast_.durability);
    const double share = forecast_.request.clipping.strike_share;
    read += share * redone_read_bytes_;
    written += share * redone_written_bytes_;
    forecast_.read_bytes_per_step = read * forecast_.ranks;
    forecast_.written_bytes_per_step = written * forecast_.ranks;
  }

  void count_saved_bytes() {
    const Plan& plan = *forecast_.plan;
    Workload exact = forecast_.rank_request.workload;
    if (!exact.codes.any()) return;
    exact.codes = {};
    uint64_t gathered = 0, reduced = 0;
    for (const Move& move : plan.moves) {
      if (move.kind == MoveKind::gather) {
        gathered += gathered_unit_bytes(exact, plan.tiles, move.unit).all;
      } else if (move.kind == MoveKind::reduce) {
        const uint64_t sum_bytes = gradient_sum_bytes(exact, move.unit, plan.micro_batch_group, plan.on_device);
        reduced += reduced_unit_bytes(exact, move.unit, sum_bytes).all;
      }
    }
    // Of shards of a few elements a record takes more.
    auto saved = [&](uint64_t bytes, MoveKind kind) { return bytes - std::min(bytes, collective_bytes(plan, kind)); };
    forecast_.gathered_bytes_saved = saved(gathered, MoveKind::gather);
    forecast_.reduced_bytes_saved = saved(reduced, MoveKind::reduce);
  }

  // Compute and offloading grow with the tokens, all else takes the same time whatever they are.
  void find_compute_bound() {
    const double compute_s = forecast_.lane_busy_s(Lane::compute);
    if (compute_s <= 0 || !forecast_.unknown_rates().empty()) return;
    const MachineProfile& machine = forecast_.rank_request.machine;
    double up_s = 0, down_s = 0;  // of offloading
    auto at = [](uint64_t bytes, double gbps) { return gbps > 0 ? static_cast<double>(bytes) / (gbps * 1e9) : 0; };
    for (const Move& move : forecast_.plan->moves) {
      if (move.kind == MoveKind::upload_activation) up_s += at(move.bytes, machine.host_to_device_gbps);
      if (move.kind == MoveKind::download_activation) down_s += at(move.bytes, machine.device_to_host_gbps);
    }
    if (std::max(up_s, down_s) >= compute_s) return;  // never
    // How many times as many tokens take as long to compute as the lane is busy.
    auto times_as_many = [&](double busy_s, double growing_s) {
      return (busy_s - growing_s) / (compute_s - growing_s);
    };
    const double times = std::max({times_as_many(forecast_.times.drives_busy_s, 0),
                                   times_as_many(forecast_.lane_busy_s(Lane::update), 0),
                                   times_as_many(forecast_.lane_busy_s(Lane::collective), 0),
                                   times_as_many(forecast_.lane_busy_s(Lane::host_to_device), up_s),
                                   times_as_many(forecast_.lane_busy_s(Lane::device_to_host), down_s)});
    forecast_.compute_bound_tokens = static_cast<double>(forecast_.request.tokens) * times;
  }

  Forecast& forecast_;
  double redone_read_bytes_ = 0, redone_written_bytes_ = 0;  // of a step that strikes
};

StageMerit merit_of(const Forecast& forecast) {
  return {.fits = forecast.fits,
          .step_s = forecast.times.step_s,
          .written_bytes = forecast.written_bytes_per_step,
          .read_bytes = forecast.read_bytes_per_step,
          .memory_bytes = forecast.needed_bytes(Tier::device) + forecast.needed_bytes(Tier::host)};
}

StageForecast summary_of(const Forecast& forecast) {
  StageForecast summary{.stage = forecast.stage, .fits = forecast.fits, .step_s = forecast.times.step_s};
  if (forecast.fits) {
    summary.sent_bytes =
        collective_bytes(*forecast.plan, MoveKind::gather) + collective_bytes(*forecast.plan, MoveKind::reduce);
    for (const Move& move : forecast.plan->moves) summary.network_bytes += move.network_bytes;
  }
  return summary;
}

std::vector<Stage> stages_to_plan(const ForecastRequest& request) {
  if (request.stage && !request.explains) return {*request.stage};
  return stages_of({.of_node = request.ranks, .nodes = request.nodes}, request.codes);
}

const char* where_rate_is_given(const std::string& rate) {
  if (rate == "compute") return "--flops sets it";
  if (rate == "updates") return "--host-gbps sets it, `penstock nvme probe` measures it";
  return rate == "collectives" ? "collective_gbps in the profile" : "device_to_host_gbps in the profile";
}

void take_notes(Forecast& forecast) {
  const ForecastRequest& request = forecast.request;
  auto note = [&](std::string line) { forecast.notes.push_back(std::move(line)); };
  if (!request.shape.note.empty()) note(request.shape.note);
  if (request.machine.uses_burst_rates()) {
    note(
        "no sustained rate of the drives was measured, so burst rates are used; long writes may be slower than this "
        "(`penstock nvme bench --steady` measures sustained rates)");
  }
  for (const std::string& rate : forecast.unknown_rates()) {
    note(text("the time of ", rate, " is not counted, since the machine's profile has no rate for it (",
              where_rate_is_given(rate), ")"));
  }
  if (request.slots == 1) note("one slot a tile: a crash during a step loses the store");
  if (!forecast.drive_life_days())
    note("drive life is unknown: the profile does not say what its drives endure (endurance_bytes)");
  if (forecast.assumes_network) {
    note(text("the network is assumed to bring a node ", fixed(kNetworkAssumedGbps, 1),
              " GB/s, since the machine's profile has no rate for it (network_gbps; --network sets it)"));
  }
  if (forecast.ranks > 1) {
    note(text("memory and lanes are those of one of ", forecast.ranks, " ranks, with its share of drives and host"));
  }
}

}  // namespace

std::vector<std::string> Forecast::unknown_rates() const {
  std::vector<std::string> unknown;
  if (request.machine.host_gbps <= 0) unknown.push_back("updates");
  if (request.scope != StepScope::training) return unknown;
  if (request.machine.device_flops <= 0) unknown.push_back("compute");
  if (ranks > 1 && rank_request.machine.collective_gbps <= 0) unknown.push_back("collectives");
  if (request.machine.copies_to_device() && request.machine.device_to_host_gbps <= 0)
    unknown.push_back("copies from the device");
  return unknown;
}

std::string Forecast::bottleneck() const { return bottleneck_of(reliefs, times.step_s); }

std::optional<double> Forecast::tokens_per_s() const {
  if (request.scope == StepScope::update_only || !unknown_rates().empty()) return std::nullopt;
  return static_cast<double>(request.tokens) / times.step_s;
}

std::optional<double> Forecast::drive_life_days() const {
  double endurance = 0;
  for (const DriveRates& drive : request.machine.drives) {
    if (drive.endurance_bytes <= 0) return std::nullopt;
    endurance += drive.endurance_bytes;
  }
  if (written_bytes_per_step <= 0 || !unknown_rates().empty()) return std::nullopt;
  return endurance * request.nodes / written_bytes_per_step * times.step_s / 86400;
}

uint64_t Forecast::needed_bytes(Tier tier) const { return penstock::needed_bytes(needed, tier); }
uint64_t Forecast::budget_bytes(Tier tier) const { return budget_of(rank_request.budgets, tier); }

Result<Forecast> forecast(ForecastRequest request, const PlanningProgress& progress) {
  PENSTOCK_TRY(check_request(request));
  const ForecastRequest asked = request;
  fill_in(request);
  PENSTOCK_TRY(check_passes(request));
  PENSTOCK_TRY(check_form_of_ranks(request));
  std::optional<Forecast> best;
  std::vector<StageForecast> stages;
  const std::vector<Stage> to_plan = stages_to_plan(request);
  const auto goes_on = [&](const std::string& with) {
    if (progress) progress(static_cast<double>(stages.size()) / static_cast<double>(to_plan.size() + 1), with);
  };
  for (const Stage stage : to_plan) {
    goes_on(name_of(stage));
    Forecast one;
    one.request = request;
    one.ranks = request.ranks * request.nodes;
    one.assumes_network = assumes_network(asked);
    one.stage = stage;
    one.rank_request = request_of_rank(request, stage);
    PENSTOCK_TRY(Forecaster(one).predict());
    stages.push_back(summary_of(one));
    if (!best || (request.stage ? stage == *request.stage : goes_before(merit_of(one), merit_of(*best))))
      best = std::move(one);
  }
  if (request.explains) goes_on("each lane a tenth faster");
  best->stages = std::move(stages);
  if (request.explains) Forecaster(*best).explain(asked);
  if (best->fits) take_notes(*best);
  return std::move(*best);
}

}  // namespace penstock::tools
