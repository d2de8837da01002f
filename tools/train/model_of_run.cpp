#include "tools/train/model_of_run.h"

#include <filesystem>

#include "runtime/trainer/config/adapters.h"
#include "runtime/trainer/engine_link.h"
#include "runtime/trainer/files/file_io.h"
#include "runtime/trainer/files/model_folder.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kModelConfigMostBytes = 1'000'000;
// What of a root's 64 KiB is left to the model's config.json, beside ours.
constexpr uint64_t kModelJsonMostBytes = 32'000;
constexpr const char* kSmallGpt =
    R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 256, "n_layer": 6, "n_head": 8,
        "vocab_size": 257, "n_positions": 1024, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0,
        "tie_word_embeddings": true})";

StateForm form_of(const trainer::TrainConfig& config) {
  return {.optimizer = config.optimizer,
          .master = config.precision == Dtype::bf16   ? MasterForm::split
                    : config.precision == Dtype::fp16 ? MasterForm::full
                                                      : MasterForm::same,
          .moments = config.moments,
          .weight = config.precision,
          .gradient = config.precision};
}

Result<ModelSource> found_source(const trainer::TrainConfig& config,
                                 const std::optional<trainer::TrainerState>& stored) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path path = config.model;
  // The store has what it was made of, wherever that is now.
  if (stored && (config.model.empty() || !fs::exists(path, error))) {
    return ModelSource{stored->model_json, stored->model_folder};
  }
  if (config.model.empty()) return ModelSource{kSmallGpt, ""};
  if (!fs::exists(path, error)) {
    return errno_status("model: " + config.model, ENOENT,
                        "a folder with config.json and safetensors, or a config.json");
  }
  if (!fs::is_directory(path, error)) {
    PENSTOCK_TRY_ASSIGN(json, trainer::read_small_file(config.model, kModelConfigMostBytes));
    return ModelSource{json, ""};
  }
  PENSTOCK_TRY_ASSIGN(json, trainer::read_config_file(config.model));
  return ModelSource{json, config.from_scratch ? "" : fs::canonical(path, error).string()};
}

}  // namespace

Result<ModelSource> model_source(const trainer::TrainConfig& config,
                                 const std::optional<trainer::TrainerState>& stored) {
  PENSTOCK_TRY_ASSIGN(source, found_source(config, stored));
  if (source.json.size() <= kModelJsonMostBytes) return source;
  return Status(Code::kUsage,
                text("model: config.json: ", source.json.size(), " B, at most ", kModelJsonMostBytes,
                     " B expected, which every root keeps"),
                "leave out what does not shape the model, such as tables of labels");
}

Result<trainer::Model> model_of(const trainer::TrainConfig& config, const std::string& model_json) {
  PENSTOCK_TRY_ASSIGN(shape, trainer::parse_model_config(model_json));
  const uint64_t alignment_elements =
      config.moments == MomentForm::int8 ? kMomentBlockElements : kParameterAlignmentElements;
  trainer::Model model = trainer::make_model(shape, config.precision, alignment_elements);
  if (config.lora.rank > 0) PENSTOCK_TRY(trainer::add_adapters(config.lora, alignment_elements, model));
  return Result<trainer::Model>(std::move(model));
}

Workload workload_of(const trainer::TrainConfig& config, const trainer::Model& model,
                     const trainer::ParameterGroups& groups) {
  Workload workload;
  workload.form = form_of(config);
  workload.units = trainer::units_of(model);
  workload.uses = trainer::uses_of(model);
  workload.scope = StepScope::training;
  for (size_t unit = 0; unit < workload.units.size(); ++unit) {
    for (size_t i = 0; i < workload.units[unit].parameters.size(); ++i)
      workload.units[unit].parameters[i].group = groups.of[unit][i];
  }
  return workload;
}

std::string parameters_text(const trainer::Model& model) {
  const uint64_t all = model.parameters(), trained = model.trained_parameters();
  if (trained == all) return text(all, " parameters");
  const double share = static_cast<double>(trained) / static_cast<double>(all);
  return text(all, " parameters, of which ", trained, " (", fixed(100 * share, 2), " %) are trained");
}

}  // namespace penstock::tools
