#include "aio/direct_folder.h"
#include "aio/make_io_engine.h"
#include "aio/resident_memory.h"
#include "runtime/engine/ranks/initial_set.h"
#include "tools/penstock/command.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/quantity.h"
#include "tools/penstock/store_flags.h"
#include "tools/system/words.h"
#include "tools/train/config_of_run.h"
#include "tools/train/settings_of_run.h"
#include "tools/train/store_of_run.h"
#include "tools/update/update_run.h"

namespace penstock::tools {
namespace {

struct ImportFlags {
  std::string model;
  uint64_t ranks = 1;
  TrainFlags train;
};

// Of what all ranks have alike.
engine::NewSet set_of(const TrainingSettings& settings, aio::Existing existing) {
  const uint32_t ranks = settings.place.ranks;
  engine::NewSet set{.ranks = ranks,
                     .group_ranks = trainer::group_ranks_of(settings.config, ranks),
                     .drives = {},
                     .existing = existing,
                     .config_hash = settings.engine.config_hash,
                     .trainer_state = settings.engine.initial_state};
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    set.drives.push_back(
        aio::direct_folders(folders_of_rank(settings.config.stores, {.rank = rank, .ranks = ranks, .meeting = {}})));
  }
  return set;
}

Status make_stores(Session& session, const TrainingSettings& settings, aio::Existing existing) {
  const Tick tick = ticking(session, "import");
  if (settings.place.ranks == 1) return make_store(settings, existing, tick);
  PENSTOCK_TRY_ASSIGN(starting, starting_values(settings));
  PENSTOCK_TRY_ASSIGN(made, aio::make_io_engine());
  const auto initial = [&](uint32_t unit, uint64_t first, std::span<float> values) {
    return starting.read(unit, first, values);
  };
  return engine::create_set(*made.engine, settings.ranked(), set_of(settings, existing), initial, tick);
}

Result<Answer> import_model(Session& session, ImportFlags flags) {
  if (flags.ranks == 0 || flags.ranks > engine::kRanksMax) {
    return Status(Code::kUsage, text("--ranks: ", flags.ranks, ": 1 to ", engine::kRanksMax, " expected"), "--ranks 4");
  }
  flags.train.model = flags.model;
  PENSTOCK_TRY_ASSIGN(config, config_of(flags.train, std::nullopt));
  if (config.stores.empty()) return Status(Code::kUsage, "--store: missing", "--store /mnt/nvme0/model");
  const engine::RankPlace place{.rank = 0, .ranks = static_cast<uint32_t>(flags.ranks), .meeting = {}};
  PENSTOCK_TRY_ASSIGN(settings, settings_of(config, std::nullopt, place));
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
  PENSTOCK_TRY(make_stores(session, settings, flags.train.force ? aio::Existing::replace : aio::Existing::refuse));
  Answer answer;
  answer.json = {{"parameters", settings.model.parameters()},
                 {"trained_parameters", settings.model.trained_parameters()},
                 {"architecture", settings.model.config.architecture},
                 {"ranks", flags.ranks},
                 {"store", joined(settings.config.stores, ",")}};
  answer.text =
      text(settings.model.parameters(), " parameters of ", flags.model, " are in ", joined(settings.config.stores, ","),
           flags.ranks > 1 ? text(" for ", flags.ranks, " ranks") : "", "\n");
  return answer;
}

}  // namespace

Verb checkpoint_import_verb() {
  auto flags = std::make_shared<ImportFlags>();
  return {"checkpoint import",
          "Make a store of a model's weights",
          "Reads a folder as Hugging Face has it, safetensors in one file or in shards, in bounded memory. `penstock\n"
          "train --store` then begins with it; `penstock train --model FOLDER` does both at once. The optimizer, its\n"
          "moments and the precision are those of --config; a store cannot change them afterwards. With --ranks N the "
          "stores\n"
          "of N ranks are made, cut as the config's stage says, else as stage 3, on the drives where ranks of one node "
          "have them.",
          {{"penstock checkpoint import ./Qwen3-0.6B --store /mnt/nvme0/qwen", "One drive"},
           {"penstock checkpoint import ./Qwen3-0.6B --store /mnt/nvme0/qwen --config ds_config.json --ranks 2",
            "For `penstock train ds_config.json --ranks 2`"}},
          [flags](Options& options) -> Action {
            options.path("MODEL", flags->model, "The model's folder");
            options.text("--store", flags->train.stores, "PATH[,PATH]",
                         "Folders of the store, one on each drive; made where missing");
            options.file("--config", flags->train.config, "The run's config");
            options.text("--budget", flags->train.budget, "host=SIZE[,nvme=SIZE]", "Memory of the runs to come");
            options.count("--ranks", flags->ranks, "Of the runs to come; their stores are made together");
            options.flag("--force", flags->train.force, "Replace a store that is there");
            return [flags](Session& session) { return import_model(session, *flags); };
          }};
}

}  // namespace penstock::tools
