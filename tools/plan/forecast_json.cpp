#include "tools/plan/forecast_json.h"

#include <algorithm>
#include <cmath>

#include "tools/plan/forecast_text.h"
#include "tools/plan/held_state.h"

namespace penstock::tools {
namespace {

using Json = nlohmann::ordered_json;

Json needed_json(const Forecast& forecast) {
  Json all = Json::object();
  for (Tier tier : kTiers) {
    Json lines = Json::object();
    for (const BudgetLine& line : forecast.needed) {
      if (line.tier == tier) lines[line.name] = line.bytes;
    }
    all[penstock::name_of(tier)] = {{"total", forecast.needed_bytes(tier)}, {"lines", lines}};
  }
  return all;
}

Json held_json(const Forecast& forecast) {
  Json roles = Json::object();
  for (const HeldRole& held : held_state(forecast)) {
    for (Tier tier : kTiers) {
      roles[penstock::name_of(held.role)][penstock::name_of(tier)] =
          held.bytes_of(tier) / static_cast<double>(forecast.request.shape.parameters());
    }
  }
  return roles;
}

Json stages_json(const Forecast& forecast) {
  Json stages = Json::array();
  for (const HeldByStage& stage : held_by_stage(forecast)) {
    const bool fits = stage.predicted && stage.predicted->fits;
    stages.push_back({{"stage", name_of(stage.stage)},
                      {"planned", stage.is_planned},
                      {"rank_bytes", std::llround(stage.rank_bytes)},
                      {"node_bytes", std::llround(stage.rank_bytes * forecast.rank_count().of_node)},
                      {"fits", stage.predicted ? Json(fits) : Json()},
                      {"step_s", fits ? Json(stage.predicted->step_s) : Json()},
                      {"sent_bytes", fits ? Json(stage.predicted->sent_bytes) : Json()},
                      {"network_bytes", fits ? Json(stage.predicted->network_bytes) : Json()}});
  }
  return stages;
}

Json codes_json(const Forecast& forecast) {
  const RankCodes& codes = forecast.request.codes;
  if (!codes.any()) return Json();
  return {{"weights", codes.weights ? Json("int8") : Json()},
          {"gradients", codes.gradients ? Json("int4") : Json()},
          {"gathered_bytes_saved", forecast.gathered_bytes_saved},
          {"reduced_bytes_saved", forecast.reduced_bytes_saved}};
}

Json exit_json(const Forecast& forecast) {
  const std::optional<ExitCommit>& commit = forecast.exit_commit;
  if (!commit) return Json();
  return {{"written_bytes", commit->written_bytes * forecast.ranks}, {"predicted_s", commit->seconds}};
}

}  // namespace

Json forecast_json(const Forecast& forecast) {
  const ForecastRequest& request = forecast.request;
  Json json;
  json["fits"] = forecast.fits;
  json["model"] = {{"name", request.shape.name},
                   {"parameters", request.shape.parameters()},
                   {"active_parameters", request.shape.active_parameters()},
                   {"trained_parameters", trained_parameters(request)},
                   {"layers", request.shape.layers},
                   {"hidden", request.shape.hidden}};
  json["machine"] = request.machine.name;
  json["ranks"] = forecast.ranks;
  json["nodes"] = request.nodes;
  json["network_gbps"] = request.nodes > 1 ? Json(request.machine.network_gbps) : Json();
  json["stage"] = forecast.ranks > 1 ? Json(name_of(forecast.stage)) : Json();
  json["needed_bytes"] = needed_json(forecast);
  for (Tier tier : kTiers) {
    const uint64_t budget = forecast.budget_bytes(tier);
    json["budget_bytes"][penstock::name_of(tier)] = is_unbounded(budget) ? Json("unbounded") : Json(budget);
  }
  if (!forecast.fits) return json;
  json["step_s"] = forecast.times.step_s;
  json["unknown_rates"] = forecast.unknown_rates();
  json["bottleneck"] = forecast.bottleneck();
  json["saved_by_a_tenth_faster_s"] = Json::object();
  for (const Relief& relief : forecast.reliefs)
    json["saved_by_a_tenth_faster_s"][relief.resource] = std::max(0.0, relief.saved_s);
  json["lanes"] = {{"drives", forecast.times.drives_busy_s}};
  for (Lane lane : kLanesShown) json["lanes"][penstock::name_of(lane)] = forecast.lane_busy_s(lane);
  const auto parameters = static_cast<double>(request.shape.parameters());
  json["bytes_per_parameter"] = {{"read", forecast.read_bytes_per_step / parameters},
                                 {"written", forecast.written_bytes_per_step / parameters}};
  json["written_bytes_per_step"] = std::llround(forecast.written_bytes_per_step);
  json["codes"] = codes_json(forecast);
  json["commit_at_exit"] = exit_json(forecast);
  const bool trains = request.scope == StepScope::training;
  json["tokens_per_step"] = trains ? Json(request.tokens) : Json();
  const auto tokens_per_s = forecast.tokens_per_s();
  json["tokens_per_s"] = tokens_per_s ? Json(*tokens_per_s) : Json();
  const auto days = forecast.drive_life_days();
  json["drive_life_days"] = days ? Json(*days) : Json();
  json["compute_bound_tokens"] =
      forecast.compute_bound_tokens > 0 ? Json(std::llround(forecast.compute_bound_tokens)) : Json();
  json["struck_step_s"] = forecast.struck_step_s > 0 ? Json(forecast.struck_step_s) : Json();
  json["rates"] = request.machine.uses_burst_rates() ? "burst" : "sustained";
  json["plan"] = {{"micro_batches", request.micro_batches},
                  {"micro_batch_group", forecast.plan->micro_batch_group},
                  {"activations", trains ? Json(activations_text(forecast.plan->activations)) : Json()},
                  {"tile_parameters", forecast.plan->tiles.tile_elements()},
                  {"tiles", forecast.plan->tiles.size()},
                  {"durability", text_of(forecast.durability)},
                  {"space", request.slots == 1 ? "single" : "double"}};
  json["state_bytes_per_parameter"] = held_json(forecast);
  json["state_by_zero_stage"] = stages_json(forecast);
  json["notes"] = forecast.notes;
  return json;
}

}  // namespace penstock::tools
