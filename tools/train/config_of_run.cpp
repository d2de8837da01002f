#include "tools/train/config_of_run.h"

#include <filesystem>

#include "runtime/trainer/config/effective_config.h"
#include "runtime/trainer/files/file_io.h"
#include "tools/penstock/verb.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kConfigMostBytes = 1'000'000;
constexpr const char* kBuiltIn = R"({
  "sequence_length": 128, "max_steps": 100, "seed": 1,
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}},
  "scheduler": {"type": "constant", "params": {"warmup_steps": 10, "end_ratio": 0.1}},
  "penstock": {"host_budget": "1GiB"}
})";

}  // namespace

Result<trainer::TrainConfig> config_of(const TrainFlags& flags, const std::optional<trainer::TrainerState>& stored) {
  PENSTOCK_TRY_ASSIGN(overrides, overrides_of(flags));
  std::string words = stored ? stored->config : kBuiltIn;
  if (flags.config) {
    std::error_code unknown;
    if (fs::is_directory(*flags.config, unknown) && fs::exists(fs::path(*flags.config) / "config.json", unknown))
      return Status(Code::kUsage, text("CONFIG: ", *flags.config, ": is a folder, with a config.json of its own"),
                    text("`penstock train --model ", shell_word(*flags.config),
                         "` for a model, or its config.json if that is a run's"));
    PENSTOCK_TRY_ASSIGN(file, trainer::read_small_file(*flags.config, kConfigMostBytes));
    words = std::move(file);
  }
  Result<trainer::TrainConfig> config = trainer::parse_config(words, overrides);
  if (!config.ok() && flags.config) return config.status().within(*flags.config);
  return config;
}

std::vector<std::string> changes_since(const trainer::TrainingSettings& settings, const trainer::TrainerState& stored) {
  return trainer::changed_keys(stored.config, trainer::effective_json(settings.config));
}

Status write_run_config(const trainer::TrainingSettings& settings) {
  const std::string& folder = settings.config.run;
  if (folder.empty()) return Status();
  return trainer::write_small_file(folder + "/config.json", trainer::effective_json(settings.config) + "\n");
}

std::vector<std::string> stores_of_folder(const std::string& folder) {
  const std::string path = folder + "/config.json";
  std::error_code unknown;
  if (folder.empty() || !std::filesystem::exists(path, unknown)) return {};
  const Result<std::string> words = trainer::read_small_file(path, kConfigMostBytes);
  if (!words.ok()) return {};
  const Result<trainer::TrainConfig> config = trainer::parse_config(*words);
  return config.ok() ? config->stores : std::vector<std::string>();
}

bool is_models_config(const std::string& path) {
  const Result<std::string> words = trainer::read_small_file(path, kConfigMostBytes);
  const Json json = words.ok() ? Json::parse(*words, nullptr, false) : Json();
  return json.is_object() && json.contains("model_type");
}

}  // namespace penstock::tools
