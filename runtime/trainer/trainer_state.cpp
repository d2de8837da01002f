#include "runtime/trainer/trainer_state.h"

#include <nlohmann/json.hpp>

namespace penstock::trainer {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "penstock.trainer_state/1";

}  // namespace

std::string encode(const TrainerState& state) {
  const json file = {{"schema", kSchema},
                     {"config", state.config},
                     {"model_json", state.model_json},
                     {"model_folder", state.model_folder},
                     {"samples", state.samples},
                     {"loss_scale", state.loss_scale}};
  return file.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<TrainerState> parse_trainer_state(const std::string& bytes) {
  auto refused = [](const std::string& why) {
    return Status(Code::kCorrupt, "store: the trainer's state: " + why,
                  "a store that `penstock train` made is expected; `penstock update` makes others");
  };
  if (bytes.empty()) return refused("there is none");
  const json file = json::parse(bytes, nullptr, false);
  if (!file.is_object() || file.value("schema", json()) != kSchema) return refused(text(kSchema, " expected"));
  TrainerState state;
  for (auto [key, into] : {std::pair{"config", &state.config},
                           {"model_json", &state.model_json},
                           {"model_folder", &state.model_folder},
                           {"loss_scale", &state.loss_scale}}) {
    const auto found = file.find(key);
    if (found == file.end() || !found->is_string()) return refused(text("'", key, "' is not a string"));
    *into = found->get<std::string>();
  }
  const auto samples = file.find("samples");
  if (samples == file.end() || !samples->is_number_unsigned()) return refused("'samples' is not a count");
  state.samples = samples->get<uint64_t>();
  return state;
}

}  // namespace penstock::trainer
