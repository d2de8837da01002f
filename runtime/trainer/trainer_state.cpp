#include "runtime/trainer/trainer_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

namespace penstock::trainer {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "penstock.trainer_state/1";

std::optional<LossRulesState> parse_rules(const json& file) {
  auto is_number = [](const json& value) { return value.is_number() && std::isfinite(value.get<double>()); };
  for (const char* key : {"losses", "acted", "rate_factor", "lowered_until"})
    if (!file.is_object() || !file.contains(key)) return std::nullopt;
  const json &losses = file["losses"], &acted = file["acted"], &factor = file["rate_factor"];
  const json& until = file["lowered_until"];
  const bool is_ours = losses.is_array() && std::all_of(losses.begin(), losses.end(), is_number) &&
                       acted.is_number_unsigned() && is_number(factor) && until.is_number_unsigned();
  if (!is_ours || !(factor.get<double>() >= 0)) return std::nullopt;
  return LossRulesState{.losses = losses.get<std::vector<double>>(),
                        .acted = acted.get<uint64_t>(),
                        .rate_factor = factor.get<double>(),
                        .lowered_until = until.get<uint64_t>()};
}

}  // namespace

std::string encode(const TrainerState& state) {
  json file = {{"schema", kSchema},
               {"config", state.config},
               {"model_json", state.model_json},
               {"model_folder", state.model_folder},
               {"samples", state.samples},
               {"updates", state.updates},
               {"loss_scale", state.scale.scale},
               {"hysteresis", state.scale.hysteresis},
               {"last_overflow", state.scale.last_overflow}};
  if (state.patience.best) {
    file["eval_loss_best"] = *state.patience.best;
    file["evaluations_since"] = state.patience.evaluations_since;
  }
  if (state.rules != LossRulesState()) {
    file["loss_rules"] = {{"losses", state.rules.losses},
                          {"acted", state.rules.acted},
                          {"rate_factor", state.rules.rate_factor},
                          {"lowered_until", state.rules.lowered_until}};
  }
  if (!state.left_out.empty()) file["left_out"] = json::parse(json_of(state.left_out));
  return file.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<TrainerState> parse_trainer_state(const std::string& bytes) {
  auto refused = [](const std::string& why) {
    return Status(Code::kCorrupt, "store: the trainer's state: " + why,
                  "`penstock checkpoint scrub` says whether the store is damaged");
  };
  if (bytes.empty()) {
    return Status(Code::kUsage, "store: another program than `penstock train` made it: it names no model",
                  "a store that `penstock train` made; `penstock train --force` replaces this one");
  }
  const json file = json::parse(bytes, nullptr, false);
  if (!file.is_object() || file.value("schema", json()) != kSchema) return refused(text(kSchema, " expected"));
  TrainerState state;
  for (auto [key, into] :
       {std::pair{"config", &state.config}, {"model_json", &state.model_json}, {"model_folder", &state.model_folder}}) {
    const auto found = file.find(key);
    if (found == file.end() || !found->is_string()) return refused(text("'", key, "' is not a string"));
    *into = found->get<std::string>();
  }
  for (auto [key, into] : {std::pair{"samples", &state.samples},
                           {"updates", &state.updates},
                           {"hysteresis", &state.scale.hysteresis},
                           {"last_overflow", &state.scale.last_overflow}}) {
    const auto found = file.find(key);
    if (found == file.end() || !found->is_number_unsigned()) return refused(text("'", key, "' is not a count"));
    *into = found->get<uint64_t>();
  }
  const auto scale = file.find("loss_scale");
  if (scale == file.end() || !scale->is_number() || !(scale->get<double>() > 0))
    return refused("'loss_scale' is not a number above 0");
  state.scale.scale = scale->get<double>();
  // Of runs that stop early.
  if (const auto best = file.find("eval_loss_best"); best != file.end()) {
    const auto since = file.find("evaluations_since");
    if (!best->is_number() || since == file.end() || !since->is_number_unsigned())
      return refused("'eval_loss_best' is not a number with a count of evaluations since");
    state.patience = {.best = best->get<double>(), .evaluations_since = since->get<uint64_t>()};
  }
  if (const auto rules = file.find("loss_rules"); rules != file.end()) {
    std::optional<LossRulesState> found = parse_rules(*rules);
    if (!found) return refused("'loss_rules' is not what rules about the loss keep");
    state.rules = *std::move(found);
  }
  if (const auto list = file.find("left_out"); list != file.end()) {
    // Several configs may have added to it.
    Result<LeftOut> batches = parse_left_out(list->dump(), std::numeric_limits<size_t>::max());
    if (!batches.ok()) return refused("'left_out' " + batches.status().message());
    state.left_out = *std::move(batches);
  }
  return state;
}

}  // namespace penstock::trainer
