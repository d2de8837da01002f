#include "tools/plan/forecast.h"

#include <algorithm>
#include <cmath>

#include "tools/penstock/quantity.h"
#include "tools/plan/least_plan.h"
#include "tools/plan/node_share.h"

namespace penstock::tools {
namespace {

constexpr uint32_t kSteps = 4, kStepsOfLargePlans = 3;
constexpr size_t kLargePlanMoves = 150'000;
// The program itself: with LibTorch in training, without where only updates run.
constexpr uint64_t kTrainerBytes = 512 * kMiB, kEngineBytes = 64 * kMiB;
constexpr uint64_t kTokensMost = uint64_t{1} << 40;
constexpr double kActivationBytesMost = 0x1p60;
// Each micro-batch passes each unit, in moves of its own.
constexpr uint64_t kPassesMost = uint64_t{1} << 21;
constexpr Tier kTiers[] = {Tier::device, Tier::host, Tier::nvme};
constexpr uint64_t kMicroBatchesOffered = 1024, kSequenceOfferedLeast = 256;

Status check_request(const ForecastRequest& request) {
  if (request.machine.drives.empty()) {
    return Status(Code::kUsage, text("machine ", request.machine.name, ": its profile has no drive"),
                  "measure one with `penstock nvme probe PATH`, or name a shipped machine with --machine");
  }
  if (request.adapters && (request.adapters->rank == 0 || request.adapters->rank > request.shape.smallest_side())) {
    return Status(Code::kUsage,
                  text("--lora-rank: ", request.adapters->rank, ": 1 to ", request.shape.smallest_side(),
                       " expected, the smallest side of a matrix of ", request.shape.name),
                  "--lora-rank 16");
  }
  if (request.tokens > kTokensMost) {
    return Status(Code::kUsage, text("--tokens: ", request.tokens, " a step: at most ", kTokensMost, " expected"),
                  "fewer --tokens");
  }
  const uint64_t positions = request.shape.positions;
  if (request.sequence == 0 || (positions > 0 && request.sequence > positions)) {
    return Status(Code::kUsage,
                  text("--seq: ", request.sequence, ": ", request.shape.name, " takes 1 to ",
                       positions > 0 ? text(positions, " tokens") : "any number of tokens"),
                  positions > 0 ? text("--seq ", positions) : "--seq 2048");
  }
  // Of each device, micro-batches of whole sequences.
  const uint64_t least = std::max<uint64_t>(1, request.micro_batches) * std::max(1u, request.machine.devices);
  if (request.tokens / request.sequence < least) {
    return Status(Code::kUsage,
                  text("--tokens: ", request.tokens, " a step: at least ", least * request.sequence,
                       " expected, one sequence of ", request.sequence, " for each micro-batch of each device"),
                  "more --tokens, a shorter --seq or fewer --micro-batches");
  }
  const double bytes_per_token = static_cast<double>(request.shape.layers) *
                                 static_cast<double>(request.shape.block_activation_bytes() + 8 * request.shape.hidden);
  if (bytes_per_token * static_cast<double>(request.tokens) > kActivationBytesMost) {
    return Status(Code::kUsage, text("--tokens: ", request.tokens, " a step: more than 2^60 B of activations"),
                  "fewer --tokens");
  }
  return Status();
}

Status check_passes(const ForecastRequest& request) {
  const uint64_t units = request.shape.layers + 2;
  if (units * request.micro_batches <= kPassesMost) return Status();
  return Status(Code::kUsage,
                text("--micro-batches: ", request.micro_batches, ": at most ", kPassesMost / units, " expected for ",
                     units, " units"),
                text("--micro-batches ", kPassesMost / units, ", or fewer --tokens"));
}

void fill_in(ForecastRequest& request, uint32_t ranks) {
  const Budgets usual = usual_budgets(request.machine);
  Budgets& budgets = request.budgets;
  if (budgets.device_bytes == 0) budgets.device_bytes = usual.device_bytes;
  if (budgets.host_bytes == 0) budgets.host_bytes = usual.host_bytes;
  if (budgets.nvme_bytes == 0) budgets.nvme_bytes = usual.nvme_bytes;
  if (request.pass == Pass::update_only) {
    request.micro_batches = 1;
  } else if (request.micro_batches == 0) {
    request.micro_batches = usual_micro_batches(request.tokens, request.sequence, ranks);
  }
}

PlanRequest request_of_rank(const ForecastRequest& request, uint32_t ranks) {
  PlanRequest rank;
  rank.machine = share_of(request.machine, ranks);
  rank.budgets = share_of(request.budgets, ranks);
  const StepShape step{.tokens = request.tokens,
                       .sequence = request.sequence,
                       .micro_batches = request.micro_batches,
                       .ranks = ranks,
                       .device_flops = request.machine.device_flops,
                       .adapters = request.adapters};
  rank.workload.units = training_units(request.shape, step);
  if (request.pass == Pass::training) rank.workload.uses = training_uses(request.shape, step);
  rank.workload.form = request.form;
  rank.workload.pass = request.pass;
  rank.workload.micro_batches = request.micro_batches;
  rank.workload.ranks = ranks;
  rank.workload.clipping = request.clipping;
  rank.choices = request.choices;
  rank.durability = request.durability;
  rank.process_bytes = request.pass == Pass::training ? kTrainerBytes : kEngineBytes;
  return rank;
}

// Whether the smallest plan of this request, in which nothing is filled in yet, fits its budgets.
bool would_fit(ForecastRequest asked) {
  const uint32_t ranks = std::max(1u, asked.machine.devices);
  if (!check_request(asked).ok()) return false;
  fill_in(asked, ranks);
  if (!check_passes(asked).ok()) return false;
  const PlanRequest rank = request_of_rank(asked, ranks);
  const Result<std::vector<BudgetLine>> least = least_plan(rank);
  return least.ok() && std::ranges::all_of(kTiers, [&](Tier tier) {
           return needed_bytes(*least, tier) <= budget_of(rank.budgets, tier);
         });
}

// A --budget that suffices, or the machine that has as much.
std::string larger_budgets(const ForecastRequest& asked, const Forecast& forecast) {
  std::string budgets, machine;
  uint64_t drives = 0;  // 0: unknown
  for (const DriveRates& drive : asked.machine.drives) drives += drive.capacity_bytes;
  auto add = [](std::string& list, const std::string& part) { list += (list.empty() ? "" : ",") + part; };
  for (Tier tier : kTiers) {
    const uint64_t given = budget_of(asked.budgets, tier);
    if (forecast.needed_bytes(tier) <= forecast.budget_bytes(tier)) {
      if (given > 0) add(budgets, text(name_of(tier), "=", bytes_flag_text(given)));
      continue;
    }
    const uint64_t sharing = tier == Tier::device ? 1 : forecast.ranks;
    const uint64_t enough = round_up(forecast.needed_bytes(tier) * sharing, kMiB);
    const MachineProfile& has = asked.machine;
    const uint64_t there = tier == Tier::device ? has.device_bytes : tier == Tier::host ? has.host_bytes : drives;
    if (there > 0 && enough > there) {
      add(machine, text(" ", bytes_text(enough), " of ", name_of(tier), tier == Tier::nvme ? " space" : " memory"));
    } else {
      add(budgets, text(name_of(tier), "=", enough / kMiB, "MiB"));
    }
  }
  return machine.empty() ? "--budget " + budgets : "a machine with" + machine;
}

// Every way out that suffices by itself.
std::string remedy_for(const ForecastRequest& asked, const Forecast& forecast) {
  std::string remedy = larger_budgets(asked, forecast);
  auto offer = [&](const ForecastRequest& changed, const std::string& flag) {
    if (!would_fit(changed)) return false;
    remedy += "; or " + flag;
    return true;
  };
  auto is_short = [&](Tier tier) { return forecast.needed_bytes(tier) > forecast.budget_bytes(tier); };
  // Moments are not on the device in the smallest plan, and activations not on drives.
  if (asked.form.moments == MomentForm::fp32 && !is_short(Tier::device)) {
    ForecastRequest changed = asked;
    changed.form.moments = MomentForm::int8;
    if (would_fit(changed)) {
      changed.form.moments = MomentForm::bf16;
      if (!offer(changed, "--moments bf16")) remedy += "; or --moments int8";
    }
  }
  if (asked.pass != Pass::training || is_short(Tier::nvme)) return remedy;
  if (asked.choices.activations) {
    ForecastRequest changed = asked;
    changed.choices.activations = std::nullopt;
    offer(changed, "--activations auto");
  }
  const uint64_t sequences = asked.tokens / asked.sequence / forecast.ranks;
  if (forecast.request.micro_batches < sequences) {
    ForecastRequest changed = asked;
    changed.micro_batches = static_cast<uint32_t>(std::min<uint64_t>(sequences, kMicroBatchesOffered));
    offer(changed, text("--micro-batches ", changed.micro_batches));
  }
  // The smallest is tried first, so that a hopeless case ends soon; then halves from above.
  auto offer_less = [&](const char* flag, uint64_t ForecastRequest::*field, uint64_t least) {
    ForecastRequest changed = asked;
    changed.*field = least;
    if (least >= asked.*field || !would_fit(changed)) return;
    for (changed.*field = asked.*field / 2; changed.*field > least; changed.*field /= 2) {
      if (offer(changed, text(flag, " ", changed.*field))) return;
    }
    remedy += text("; or ", flag, " ", least);
  };
  offer_less("--tokens", &ForecastRequest::tokens, asked.sequence * forecast.ranks);
  offer_less("--seq", &ForecastRequest::sequence, kSequenceOfferedLeast);
  return remedy;
}

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
  // `asked` is the request before anything was filled in.
  Forecaster(const ForecastRequest& asked, Forecast& forecast) : asked_(asked), forecast_(forecast) {}

  Status run() {
    PENSTOCK_TRY(search());
    if (!forecast_.fits) return Status();
    settle_strikes();
    count_bytes();
    find_compute_bound();
    SimulationOptions options;
    options.steps = forecast_.simulated_steps;
    if (forecast_.unknown_rates().empty())
      forecast_.reliefs = find_reliefs(*forecast_.plan, forecast_.rank_request.machine, options);
    return Status();
  }

 private:
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
    forecast_.remedy = remedy_for(asked_, forecast_);
    return Status();
  }

  void keep(ChosenPlan found) {
    forecast_.fits = true;
    forecast_.plan = std::move(found.plan);
    forecast_.simulation = std::move(found.durable);
    forecast_.needed = forecast_.plan->budget_lines;
    forecast_.durability = forecast_.plan->durability;
    forecast_.times = times_of(forecast_.simulation);
    mix(forecast_.times, times_of(forecast_.simulation), times_of(found.other),
        1 - forecast_.durability.durable_share());
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
    if (!clipping.on() || clipping.strike_share <= 0) return;
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

  // Compute and offloading grow with the tokens, all else takes the same time whatever they are.
  void find_compute_bound() {
    const double compute_s = forecast_.lane_busy_s(Lane::compute);
    if (compute_s <= 0 || !forecast_.unknown_rates().empty()) return;
    const MachineProfile& machine = forecast_.rank_request.machine;
    double up_s = 0, down_s = 0;  // of offloading
    auto at = [](uint64_t bytes, double gbps) { return gbps > 0 ? static_cast<double>(bytes) / (gbps * 1e9) : 0; };
    for (const Move& move : forecast_.plan->moves) {
      if (move.kind == MoveKind::return_activation) up_s += at(move.bytes, machine.host_to_device_gbps);
      if (move.kind == MoveKind::offload_activation) down_s += at(move.bytes, machine.device_to_host_gbps);
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

  const ForecastRequest& asked_;
  Forecast& forecast_;
  double redone_read_bytes_ = 0, redone_written_bytes_ = 0;  // of a step that strikes
};

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
  if (!forecast.drive_life_days())
    note("drive life is unknown: the profile does not say what its drives endure (endurance_bytes)");
  if (forecast.ranks > 1) {
    note(text("memory and lanes are those of one of ", forecast.ranks, " ranks, with its share of drives and host"));
  }
}

}  // namespace

std::vector<std::string> Forecast::unknown_rates() const {
  std::vector<std::string> unknown;
  if (request.machine.host_gbps <= 0) unknown.push_back("updates");
  if (request.pass != Pass::training) return unknown;
  if (request.machine.device_flops <= 0) unknown.push_back("compute");
  if (ranks > 1 && request.machine.collective_gbps <= 0) unknown.push_back("collectives");
  const bool copies = request.machine.devices > 0 && request.machine.host_to_device_gbps > 0;
  if (copies && request.machine.device_to_host_gbps <= 0) unknown.push_back("copies from the device");
  return unknown;
}

std::string Forecast::bottleneck() const {
  if (reliefs.empty()) return "unknown";
  // A tenth of the relief that a resource would bring which is used without a pause.
  const double least_s = 0.1 * (1 - 1 / kReliefFaster) * times.step_s;
  return reliefs.front().saved_s > least_s ? reliefs.front().resource : "order";
}

std::optional<double> Forecast::tokens_per_s() const {
  if (request.pass == Pass::update_only || !unknown_rates().empty()) return std::nullopt;
  return static_cast<double>(request.tokens) / times.step_s;
}

std::optional<double> Forecast::drive_life_days() const {
  double endurance = 0;
  for (const DriveRates& drive : request.machine.drives) {
    if (drive.endurance_bytes <= 0) return std::nullopt;
    endurance += drive.endurance_bytes;
  }
  if (written_bytes_per_step <= 0 || !unknown_rates().empty()) return std::nullopt;
  return endurance / written_bytes_per_step * times.step_s / 86400;
}

uint64_t Forecast::needed_bytes(Tier tier) const { return penstock::needed_bytes(needed, tier); }
uint64_t Forecast::budget_bytes(Tier tier) const { return budget_of(rank_request.budgets, tier); }

Result<Forecast> forecast(ForecastRequest request) {
  PENSTOCK_TRY(check_request(request));
  const ForecastRequest asked = request;
  Forecast result;
  result.ranks = std::max(1u, request.machine.devices);
  fill_in(request, result.ranks);
  PENSTOCK_TRY(check_passes(request));
  result.request = std::move(request);
  result.rank_request = request_of_rank(result.request, result.ranks);
  PENSTOCK_TRY(Forecaster(asked, result).run());
  if (result.fits) take_notes(result);
  return result;
}

}  // namespace penstock::tools
