#include "tools/train/stage_of_run.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "runtime/engine/ranks/rank_agreement.h"
#include "tiering/plan/plan_search.h"
#include "tools/penstock/quantity.h"
#include "tools/plan/forecast_request.h"
#include "tools/plan/node_share.h"
#include "tools/plan/stage.h"

namespace penstock::tools {
namespace {

RankCount count_of(const engine::RankPlace& place) { return {.of_node = place.ranks_here(), .nodes = place.hosts}; }

void set_stage(Stage stage, const engine::RankPlace& place, trainer::TrainConfig& config) {
  config.zero_stage = stage == Stage::replicated ? 0 : stage == Stage::states ? 2 : 3;
  config.shard_ranks = stage == Stage::hybrid ? place.ranks_here() : 0;
}

std::string words_of(Stage stage, const engine::RankPlace& place) {
  trainer::TrainConfig config;
  set_stage(stage, place, config);
  return text("stage ", *config.zero_stage,
              config.shard_ranks > 0 ? text(" with mics_shard_size ", config.shard_ranks) : "");
}

// As the planner plans for ranks: this one's shards, and what it takes from the others.
PlanRequest request_with(const TrainingSettings& settings, Stage stage) {
  PlanRequest request = settings.engine.request;
  Workload& workload = request.workload;
  share_among(workload, stage, count_of(settings.place));
  for (Unit& unit : workload.units) {
    unit.elements = ceil_div(unit.elements, workload.ranks);
    unit.parameters.clear();
  }
  MachineProfile& machine = request.machine;
  if (machine.collective_gbps <= 0) machine.collective_gbps = copied_gbps(machine);
  const double network_gbps = machine.network_gbps > 0 ? machine.network_gbps : kNetworkAssumedGbps;
  machine.network_gbps = network_gbps / settings.place.ranks_here();
  return request;
}

bool is_no_fit(const Status& status) { return status.code() == Code::kDoesNotFit; }

Result<StageMerit> merit_here(const TrainingSettings& settings, Stage stage) {
  const Result<ChosenPlan> chosen = choose_plan(request_with(settings, stage));
  if (!chosen.ok() && is_no_fit(chosen.status())) return StageMerit();
  PENSTOCK_TRY(chosen.status());
  const Plan& plan = chosen->plan;
  return StageMerit{
      .fits = true,
      .step_s = chosen->step_s(),
      .written_bytes = plan.mean_written_bytes(plan.durability),
      .read_bytes = static_cast<double>(plan.read_bytes()),
      .memory_bytes = needed_bytes(plan.budget_lines, Tier::device) + needed_bytes(plan.budget_lines, Tier::host)};
}

// Ranks of one host have the same share of it: the first of them plans for all. A step is as fast as the slowest host,
// and fits where it fits on all.
Result<StageMerit> merit_of_all(const TrainingSettings& settings, Stage stage, engine::Ranks& ranks) {
  const bool plans = settings.place.rank_here() == 0;
  Result<StageMerit> mine = plans ? merit_here(settings, stage) : StageMerit{.fits = true};
  PENSTOCK_TRY(engine::agree_on(ranks, mine.status()));
  std::vector<std::array<uint64_t, 5>> each(ranks.ranks());
  PENSTOCK_TRY(
      engine::exchange_numbers(ranks,
                               std::array<uint64_t, 5>{mine->fits, std::bit_cast<uint64_t>(mine->step_s),
                                                       std::bit_cast<uint64_t>(mine->written_bytes),
                                                       std::bit_cast<uint64_t>(mine->read_bytes), mine->memory_bytes},
                               each));
  StageMerit all{.fits = true};
  for (const auto& [fits, step_s, written, read, memory] : each) {
    all.fits = all.fits && fits != 0;
    all.step_s = std::max(all.step_s, std::bit_cast<double>(step_s));
    all.written_bytes += std::bit_cast<double>(written);
    all.read_bytes += std::bit_cast<double>(read);
    all.memory_bytes = std::max(all.memory_bytes, memory);
  }
  return all;
}

// What the engine itself would be asked for; the refusal of any rank.
Status fits_engine(const TrainingSettings& settings, Stage stage, engine::Ranks& ranks) {
  Status mine;
  if (settings.place.rank_here() == 0) {
    engine::RankedOptions options = settings.ranked();
    options.group_ranks = sharing_ranks(stage, count_of(settings.place));
    options.keeps_weights = stage == Stage::states || stage == Stage::replicated;
    const Result<PlanRequest> request = engine::RankedEngine::request_of(options, settings.place);
    mine = request.ok() ? choose_plan(*request).status() : request.status();
  }
  return engine::agree_on(ranks, mine);
}

struct Candidate {
  Stage stage;
  std::string name;
  StageMerit merit;
};

// Of those that do not fit, the first, which takes the least memory.
Candidate* best_of(std::vector<Candidate>& candidates) {
  Candidate* best = &candidates.front();
  for (Candidate& one : candidates) {
    if (goes_before(one.merit, best->merit)) best = &one;
  }
  return best;
}

std::string reason_of(const Candidate& chosen, const std::vector<Candidate>& all) {
  std::string others;
  size_t fitting = 0;
  for (const Candidate& one : all) {
    fitting += one.merit.fits ? 1 : 0;
    if (one.stage == chosen.stage) continue;
    others += text(others.empty() ? "" : ", ", one.name,
                   one.merit.fits ? text(": ", seconds_text(one.merit.step_s)) : std::string(" does not fit"));
  }
  if (fitting == 0) return "none fits, and this one takes the least memory";
  if (fitting == 1) return text("the only one that fits: ", others);
  return text("the fastest that fits, ", seconds_text(chosen.merit.step_s), " a step; ", others);
}

}  // namespace

Status keep_stage(const std::optional<trainer::TrainerState>& stored, trainer::TrainConfig& config) {
  if (!stored || config.zero_stage || config.shard_ranks > 0) return Status();
  PENSTOCK_TRY_ASSIGN(before, trainer::parse_config(stored->config));
  config.zero_stage = before.zero_stage;
  config.shard_ranks = before.shard_ranks;
  return Status();
}

bool leaves_stage_open(const TrainingSettings& settings) {
  return settings.place.ranks > 1 && !settings.config.zero_stage && settings.config.shard_ranks == 0;
}

Result<std::string> choose_stage(TrainingSettings& settings, bool has_store, engine::Ranks& ranks) {
  const RankCount count = count_of(settings.place);
  std::vector<Candidate> candidates;
  for (const Stage stage : stages_of(count, settings.config.codes)) {
    if (has_store && sharing_ranks(stage, count) != count.all()) continue;
    PENSTOCK_TRY_ASSIGN(merit, merit_of_all(settings, stage, ranks));
    candidates.push_back({stage, words_of(stage, settings.place), merit});
  }
  Candidate* best = best_of(candidates);
  while (best->merit.fits) {
    const Status fits = fits_engine(settings, best->stage, ranks);
    if (fits.ok()) break;
    if (!is_no_fit(fits)) return fits;
    best->merit.fits = false;
    best = best_of(candidates);
  }
  set_stage(best->stage, settings.place, settings.config);
  settings.engine.initial_state = encode(settings.initial_state());
  return text("zero_optimization: ", best->name, ", ", reason_of(*best, candidates));
}

}  // namespace penstock::tools
