#include "aio/resident_memory.h"
#include "tools/penstock/command.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/quantity.h"
#include "tools/system/words.h"
#include "tools/train/settings_of_run.h"
#include "tools/update/update_run.h"

namespace penstock::tools {
namespace {

struct ImportFlags {
  std::string model;
  TrainFlags train;
};

Result<Answer> import_model(Session& session, ImportFlags flags) {
  flags.train.model = flags.model;
  PENSTOCK_TRY_ASSIGN(config, config_of(flags.train, std::nullopt));
  if (config.stores.empty()) return Status(Code::kUsage, "--store: missing", "--store /mnt/nvme0/model");
  PENSTOCK_TRY_ASSIGN(settings, settings_of(config, std::nullopt));
  if (settings.model_folder.empty()) {
    return Status(Code::kUsage, text("checkpoint import: ", flags.model, ": has no weights"),
                  "a folder with config.json and safetensors");
  }
  MadeFolders made;
  for (const std::string& folder : settings.config.stores) PENSTOCK_TRY(made.make(folder));
  PENSTOCK_TRY(refuse_repeated_folders("--store", settings.config.stores));
  settings.engine.request.process_bytes = aio::resident_bytes() + kEngineOverheadBytes;
  // Nothing was drawn yet: the first run says in what order it draws.
  settings.engine.config_hash.clear();
  const auto existing =
      flags.train.force ? aio::CreateOptions::Existing::replace : aio::CreateOptions::Existing::refuse;
  PENSTOCK_TRY(make_store(settings, existing, ticking(session, "import")));
  Answer answer;
  answer.json = {{"parameters", settings.model.parameters()},
                 {"trained_parameters", settings.model.trained_parameters()},
                 {"architecture", settings.model.config.architecture},
                 {"store", joined(settings.config.stores, ",")}};
  answer.text = text(settings.model.parameters(), " parameters of ", flags.model, " are in ",
                     joined(settings.config.stores, ","), "\n");
  return answer;
}

}  // namespace

Verb checkpoint_import_verb() {
  auto flags = std::make_shared<ImportFlags>();
  return {
      "checkpoint import",
      "Make a store of a model's weights",
      "Reads a folder as Hugging Face has it, safetensors in one file or in shards, in bounded memory. `penstock\n"
      "train --store` then begins with it; `penstock train --model FOLDER` does both at once. The optimizer, its\n"
      "moments and the precision are those of --config; a store cannot change them afterwards. `penstock checkpoint\n"
      "reshard` makes stores of several ranks of it.",
      {{"penstock checkpoint import ./Qwen3-0.6B --store /mnt/nvme0/qwen", "One drive"}},
      [flags](Options& options) -> Action {
        options.path("MODEL", flags->model, "The model's folder");
        options.text("--store", flags->train.stores, "PATH[,PATH]",
                     "Folders of the store, one on each drive; made where missing");
        options.file("--config", flags->train.config, "The run's config");
        options.text("--budget", flags->train.budget, "host=SIZE[,nvme=SIZE]", "Memory of the runs to come");
        options.flag("--force", flags->train.force, "Replace a store that is there");
        return [flags](Session& session) { return import_model(session, *flags); };
      }};
}

}  // namespace penstock::tools
