#include "runtime/trainer/trainer_state.h"

#include <nlohmann/json.hpp>

namespace penstock::trainer {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "penstock.trainer_state/1";

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
  return file.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<TrainerState> parse_trainer_state(const std::string& bytes) {
  auto refused = [](const std::string& why) {
    return Status(Code::kCorrupt, "store: the trainer's state: " + why,
                  "`penstock checkpoint scrub` says whether the store is damaged");
  };
  if (bytes.empty()) {
    return Status(Code::kUsage, "store: another program than `penstock train` made it: it names no model",
                  "another folder, or --force, which replaces it");
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
  return state;
}

}  // namespace penstock::trainer
