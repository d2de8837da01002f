#include <chrono>
#include <filesystem>

#include "aio/direct_folder.h"
#include "runtime/engine/ranks/reshard.h"
#include "runtime/trainer/config/effective_config.h"
#include "tools/nvme/scratch.h"
#include "tools/penstock/checkpoint_common.h"
#include "tools/penstock/command.h"
#include "tools/penstock/export_output.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/quantity.h"
#include "tools/penstock/store_flags.h"
#include "tools/system/words.h"
#include "tools/train/model_of_run.h"
#include "tools/train/store_of_run.h"

namespace penstock::tools {
namespace {

struct Flags {
  std::string source, target;
  std::optional<uint64_t> ranks, stage, shard_size;
  bool force = false;
};

Status refuse_source(const std::vector<std::string>& sources, const std::vector<std::string>& targets) {
  for (const std::string& target : targets) {
    for (const std::string& source : sources) {
      std::error_code unknown;
      if (!std::filesystem::equivalent(source, target, unknown)) continue;
      return Status(Code::kUsage, text("DST: ", target, ": a folder of the store that is read"), "another folder");
    }
  }
  return Status();
}

// The run goes on with as many samples a step and in a micro-batch, if they can be cut among so many ranks.
bool cut_batch(uint64_t ranks, trainer::TrainConfig& config) {
  const uint64_t together = config.micro_batch * ranks;
  if (together == 0 || config.train_batch % together != 0) return false;
  config.accumulation = config.train_batch / together;
  return true;
}

Result<Answer> reshard(Session& session, const Flags& flags) {
  if (!flags.ranks || *flags.ranks == 0 || *flags.ranks > engine::kRanksMax) {
    return Status(
        Code::kUsage,
        text("--ranks: ", flags.ranks ? text(*flags.ranks) : "missing", ": 1 to ", engine::kRanksMax, " expected"),
        "--ranks 4");
  }
  if (flags.stage.value_or(0) > 3) return Status(Code::kUsage, text("--stage: ", *flags.stage, ": 0 to 3 expected"));
  if (const uint64_t size = flags.shard_size.value_or(0);
      size > *flags.ranks || (size > 0 && *flags.ranks % size != 0)) {
    return Status(Code::kUsage, text("--shard-size: ", size, ": of ", *flags.ranks, " ranks"),
                  "a number that divides that of ranks; 0: all of them");
  }
  const auto ranks = static_cast<uint32_t>(*flags.ranks);
  PENSTOCK_TRY_ASSIGN(set, InspectedStores::open({flags.source}));
  const RootPayload& root = set->ranks().front()->payload();
  PENSTOCK_TRY_ASSIGN(trained, trained_by(root));
  auto& [state, config, model] = trained;
  PENSTOCK_TRY_ASSIGN(groups, trainer::group_parameters(config, model));
  const auto there = static_cast<uint32_t>(set->ranks().size());
  const engine::StoreSet source{.stores = set->ranks(), .group_ranks = trainer::group_ranks_of(config, there)};

  const std::vector<std::string> folders = split(flags.target, ',');
  MadeFolders made;
  for (const std::string& folder : folders) PENSTOCK_TRY(made.make(folder, "DST"));
  PENSTOCK_TRY(refuse_repeated_folders("DST", folders));
  PENSTOCK_TRY(refuse_source(set->folders(), folders));
  config.stores = folders;
  if (flags.stage) config.zero_stage = static_cast<uint32_t>(*flags.stage);
  if (flags.shard_size) config.shard_ranks = static_cast<uint32_t>(*flags.shard_size);
  if (ranks % trainer::group_ranks_of(config, ranks) != 0) config.shard_ranks = 0;
  const bool gathers_codes = config.codes.weights || config.codes.frozen_weights;
  if (gathers_codes && ranks > 1 && trainer::group_ranks_of(config, ranks) == 1) {
    return Status(Code::kUsage, "--stage: 0: the run gathers weights in int8, and stage 0 gathers none", "--stage 3");
  }
  const bool is_cut = cut_batch(ranks, config);
  state.config = trainer::effective_json(config);
  engine::NewSet wanted{.ranks = ranks,
                        .group_ranks = trainer::group_ranks_of(config, ranks),
                        .drives = {},
                        .existing = flags.force ? aio::Existing::replace : aio::Existing::refuse,
                        // Where nobody can go on with batches that cannot be cut, or nothing was drawn yet, the next
                        // run says what it goes on with.
                        .config_hash = is_cut && !root.config_hash.empty() ? trainer::config_identity(config) : "",
                        .trainer_state = encode(state)};
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    wanted.drives.push_back(
        aio::direct_folders(folders_of_rank(folders, {.rank = rank, .ranks = ranks, .meeting = {}})));
  }

  const auto began = std::chrono::steady_clock::now();
  PENSTOCK_TRY_ASSIGN(moved, engine::reshard(set->engine(), source, workload_of(config, model, groups), wanted,
                                             ticking(session, "reshard")));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  Answer answer;
  answer.json = {{"step", root.step},
                 {"from_ranks", there},
                 {"ranks", ranks},
                 {"parameters", model.parameters()},
                 {"read_bytes", moved.read_bytes},
                 {"written_bytes", moved.written_bytes},
                 {"seconds", seconds},
                 {"gradient_accumulation_steps", is_cut ? Json(config.accumulation) : Json()},
                 {"store", joined(folders, ",")}};
  answer.text =
      text("step ", root.step, " of ", there, there == 1 ? " rank" : " ranks", " is in ", joined(folders, ","), " for ",
           ranks, ": ", bytes_text(moved.written_bytes), " in ", fixed(seconds, 1), " s\n");
  if (!is_cut) {
    answer.text += text("a batch of ", config.train_batch, " samples in micro-batches of ", config.micro_batch,
                        " cannot be cut among ", ranks, " ranks: go on with a config that says another one\n");
  }
  return answer;
}

}  // namespace

Verb checkpoint_reshard_verb() {
  auto flags = std::make_shared<Flags>();
  return {
      "checkpoint reshard",
      "Make the stores of another number of ranks, or on other drives",
      "Copies the newest step of the stores at SRC to new ones at DST, cut among N ranks: weights, masters, moments,\n"
      "counts and the trainer's state are the same bits, and each block is verified as it passes. SRC is only read.\n"
      "Memory stays below 300 MB whatever the model's size. With as many folders as ranks, each rank has one of its\n"
      "own; otherwise all ranks lie on all of them. A run goes on with as many samples a step and in a micro-batch:\n"
      "its gradient_accumulation_steps are divided anew. Steps that were kept stay where they are.",
      {{"penstock checkpoint reshard /mnt/nvme0/run /mnt/nvme1/run --ranks 4", "For four ranks on one drive"},
       {"penstock checkpoint reshard /mnt/nvme0/run,/mnt/nvme1/run /mnt/nvme2/run --ranks 1", "For one alone"}},
      [flags](Options& options) -> Action {
        options.path("SRC", flags->source, "The folders of all ranks' stores, joined by commas, in any order");
        options.path("DST", flags->target, "Folders of the new stores, joined by commas; made where missing");
        options.count("--ranks", flags->ranks, "Of the new world; 1: one that is alone");
        options.count("--stage", flags->stage, "What each rank keeps, as zero_optimization.stage; else as before");
        options.count("--shard-size", flags->shard_size,
                      "Ranks that share one copy of the model, as zero_optimization.mics_shard_size; else as before");
        options.flag("--force", flags->force, "Replace stores that are at DST");
        return [flags](Session& session) { return reshard(session, *flags); };
      }};
}

}  // namespace penstock::tools
