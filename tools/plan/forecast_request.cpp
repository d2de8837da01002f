#include "tools/plan/forecast_request.h"

#include <algorithm>

#include "runtime/engine/ranks/ranked_engine.h"
#include "tools/penstock/quantity.h"
#include "tools/plan/least_plan.h"
#include "tools/plan/node_share.h"

namespace penstock::tools {
namespace {

// The program itself: with LibTorch in training, without where only updates run.
constexpr uint64_t kTrainerBytes = 512 * kMiB, kEngineBytes = 64 * kMiB;
constexpr uint64_t kTokensMost = uint64_t{1} << 40;
constexpr double kActivationBytesMost = 0x1p60;
// Each micro-batch passes each unit, in moves of its own.
constexpr uint64_t kPassesMost = uint64_t{1} << 17;  // half a minute of planning on one core
constexpr uint64_t kMicroBatchesOffered = 1024, kSequenceOfferedLeast = 256;

RankCount ranks_of(const ForecastRequest& request) {
  return {.of_node = request.ranks > 0 ? request.ranks : std::max(1u, request.machine.devices), .nodes = request.nodes};
}

Status check_ranks(const ForecastRequest& request) {
  const uint32_t ranks = ranks_of(request).of_node, devices = request.machine.devices;
  if (request.nodes == 0 || request.nodes > engine::kRanksMax) {
    return Status(Code::kUsage, text("--nodes: ", request.nodes, ": 1 to ", engine::kRanksMax, " expected"),
                  "--nodes 2");
  }
  if (const uint32_t most = engine::kRanksMax / request.nodes; ranks > most) {
    return Status(Code::kUsage,
                  text("--ranks: ", ranks, " of each node: at most ", engine::kRanksMax, " ranks train together"),
                  text("--ranks ", most));
  }
  if (devices > 0 && ranks > devices) {
    return Status(Code::kUsage,
                  text("--ranks: ", ranks, ": ", request.machine.name, " has ", devices,
                       devices == 1 ? " device" : " devices", ", and each rank computes on one of its own"),
                  text("--ranks ", devices));
  }
  return Status();
}

Status check_codes(const ForecastRequest& request) {
  if (!request.codes.any()) return Status();
  const char* flag = request.codes.weights ? "--quantized-weights" : "--quantized-gradients";
  if (ranks_of(request).all() == 1) {
    return Status(Code::kUsage, text(flag, ": one rank sends nothing"),
                  text(request.machine.devices == 0 ? "--ranks 2 with it, or " : "", "leave ", flag, " out"));
  }
  if (request.scope == StepScope::update_only) {
    return Status(Code::kUsage, text(flag, ": does not go with --update-only, in which ranks send nothing"),
                  text("leave ", flag, " out"));
  }
  if (!request.codes.weights || request.stage != Stage::replicated) return Status();
  return Status(Code::kUsage, "--quantized-weights: in stage 0 every rank has all weights, and none are gathered",
                "--stage 3 with it, or leave --quantized-weights out");
}

Status check_stage(const ForecastRequest& request) {
  if (!request.stage) return Status();
  const RankCount ranks = ranks_of(request);
  if (ranks.all() == 1) {
    return Status(Code::kUsage, text("--stage: ", name_of(*request.stage), ": one rank has all of the model"),
                  text(request.machine.devices == 0 ? "--ranks 2 with it, or " : "", "leave --stage out"));
  }
  if (*request.stage != Stage::hybrid || (ranks.nodes > 1 && ranks.of_node > 1)) return Status();
  return Status(Code::kUsage, "--stage: hybrid: several ranks on each of several nodes expected", "--stage 3");
}

}  // namespace

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
                  text("--seq ", positions > 0 ? positions : 2048));
  }
  PENSTOCK_TRY(check_ranks(request));
  PENSTOCK_TRY(check_stage(request));
  PENSTOCK_TRY(check_codes(request));
  // Of each rank, micro-batches of whole sequences.
  const uint64_t ranks = ranks_of(request).all();
  const uint64_t least = std::max<uint64_t>(1, request.micro_batches) * ranks;
  if (request.tokens / request.sequence < least) {
    return Status(
        Code::kUsage,
        text("--tokens: ", request.tokens, " a step: at least ", least * request.sequence,
             " expected, one sequence of ", request.sequence, " for each micro-batch of each rank"),
        text("--tokens ", least * request.sequence,
             request.tokens >= least ? text(", or --seq ", request.tokens / least) : std::string(),
             request.micro_batches > 1 && request.tokens / request.sequence >= ranks ? ", or leave --micro-batches out"
                                                                                     : ""));
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

Status check_form_of_ranks(const ForecastRequest& request) {
  if (ranks_of(request).all() == 1 || request.scope != StepScope::training) return Status();
  return engine::RankedEngine::check_form(request_of_rank(request, Stage::sharded));
}

bool assumes_network(const ForecastRequest& request) { return request.nodes > 1 && request.machine.network_gbps <= 0; }

void fill_in(ForecastRequest& request) {
  request.ranks = ranks_of(request).of_node;
  if (assumes_network(request)) request.machine.network_gbps = kNetworkAssumedGbps;
  const Budgets usual = usual_budgets(request.machine);
  Budgets& budgets = request.budgets;
  if (budgets.device_bytes == 0) budgets.device_bytes = usual.device_bytes;
  if (budgets.host_bytes == 0) budgets.host_bytes = usual.host_bytes;
  if (budgets.nvme_bytes == 0) budgets.nvme_bytes = usual.nvme_bytes;
  if (request.scope == StepScope::update_only) {
    request.micro_batches = 1;
  } else if (request.micro_batches == 0) {
    request.micro_batches = usual_micro_batches(request.tokens, request.sequence, ranks_of(request).all());
  }
}

PlanRequest request_of_rank(const ForecastRequest& request, Stage stage) {
  const RankCount count = ranks_of(request);
  const uint32_t ranks = count.all(), sharing = sharing_ranks(stage, count);
  PlanRequest rank;
  rank.machine = share_of(request.machine, count.of_node);
  rank.budgets = share_of(request.budgets, count.of_node);
  const StepShape step{.tokens = request.tokens,
                       .sequence = request.sequence,
                       .micro_batches = request.micro_batches,
                       .ranks = ranks,
                       .groups = ranks / sharing,
                       .device_flops = rank.machine.device_flops,
                       .adapters = request.adapters};
  rank.workload.units = training_units(request.shape, step);
  if (request.scope == StepScope::training) rank.workload.uses = training_uses(request.shape, step);
  rank.workload.form = request.form;
  rank.workload.scope = request.scope;
  rank.workload.micro_batches = request.micro_batches;
  share_among(rank.workload, stage, count);
  rank.workload.codes = request.codes;
  rank.workload.clipping = request.clipping;
  rank.choices = request.choices;
  rank.durability = request.durability;
  rank.slots = request.slots;
  rank.process_bytes = request.scope == StepScope::training ? kTrainerBytes : kEngineBytes;
  return rank;
}

namespace {

// Whether the smallest plan of this request, in which nothing is filled in yet, fits its budgets.
bool would_fit(ForecastRequest asked) {
  if (!check_request(asked).ok()) return false;
  fill_in(asked);
  if (!check_passes(asked).ok() || !check_form_of_ranks(asked).ok()) return false;
  const PlanRequest rank = request_of_rank(asked, asked.stage.value_or(Stage::sharded));
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
    const uint64_t sharing = tier == Tier::device ? 1 : forecast.rank_count().of_node;
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

}  // namespace

std::string remedy_for(const ForecastRequest& asked, const Forecast& forecast) {
  std::string remedy = larger_budgets(asked, forecast);
  auto offer = [&](const ForecastRequest& changed, const std::string& flag) {
    if (!would_fit(changed)) return false;
    remedy += "; or " + flag;
    return true;
  };
  auto is_short = [&](Tier tier) { return forecast.needed_bytes(tier) > forecast.budget_bytes(tier); };
  if (asked.stage && *asked.stage != Stage::sharded) {
    ForecastRequest changed = asked;
    changed.stage = std::nullopt;
    offer(changed, "--stage auto");
  }
  if (asked.slots != 1 && is_short(Tier::nvme)) {
    ForecastRequest changed = asked;
    changed.slots = 1;
    offer(changed, "--space single");
  }
  // Moments are not on the device in the smallest plan, and activations not on drives.
  if (asked.form.moments == MomentForm::fp32 && !is_short(Tier::device)) {
    ForecastRequest changed = asked;
    changed.form.moments = MomentForm::int8;
    if (would_fit(changed)) {
      changed.form.moments = MomentForm::bf16;
      if (!offer(changed, "--moments bf16")) remedy += "; or --moments int8";
    }
  }
  if (asked.scope != StepScope::training || is_short(Tier::nvme)) return remedy;
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

}  // namespace penstock::tools
