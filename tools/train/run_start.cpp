#include "tools/train/run_start.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>

#include "aio/make_io_engine.h"
#include "runtime/engine/ranks/rank_agreement.h"
#include "runtime/trainer/config/effective_config.h"
#include "runtime/trainer/torch/cuda_accelerator.h"
#include "runtime/trainer/torch/training_device.h"
#include "tiering/store/store_hash.h"
#include "tools/penstock/command.h"
#include "tools/penstock/store_flags.h"
#include "tools/penstock/update_common.h"
#include "tools/penstock/way_back.h"
#include "tools/system/interrupt.h"
#include "tools/system/words.h"
#include "tools/train/config_of_run.h"
#include "tools/train/model_of_run.h"
#include "tools/train/settings_of_run.h"
#include "tools/train/stage_of_run.h"
#include "tools/train/store_of_run.h"

namespace penstock::tools {
namespace {

constexpr double kProbeSeconds = 0.4;             // for each point of the mix curve
constexpr std::chrono::seconds kSaysAfter{5};     // that it waits for others
constexpr std::chrono::seconds kTellsWithin{30};  // why this rank ends, to those that have come by then
constexpr double kLateAtMostS = 600;              // that a rank is waited for, whatever it does

void divide_among(uint32_t ranks, MachineProfile& machine) {
  for (DriveRates& drive : machine.drives) {
    drive.burst = drive.burst.scaled(1.0 / ranks);
    if (drive.sustained) drive.sustained = drive.sustained->scaled(1.0 / ranks);
  }
}

// Which of the ranks this is. A launcher has started all of them already; without one there is a single rank.
Result<engine::RankPlace> place_of(const TrainFlags& flags) {
  PENSTOCK_TRY_ASSIGN(place, engine::find_rank_place());
  if (flags.ranks && *flags.ranks != place.ranks) {
    return Status(Code::kUsage, text("--ranks: ", *flags.ranks, ", where ", place.ranks, " were started"),
                  "leave --ranks out where torchrun or Slurm starts them");
  }
  return place;
}

engine::RanksOptions options_of(const engine::RankPlace& place, std::chrono::milliseconds within) {
  return {.place = place, .meets_within = within, .gives_up = interrupted};
}

// What a run learns from is the same whenever it goes on, unless --data says otherwise.
Status expect_data_of(const trainer::TrainerState& stored, trainer::TrainConfig& config) {
  PENSTOCK_TRY_ASSIGN(before, trainer::parse_config(stored.config));
  for (trainer::DataFile& data : config.data) {
    const auto same = std::ranges::find(before.data, data.path, &trainer::DataFile::path);
    if (data.hash.empty() && same != before.data.end()) data.hash = same->hash;
  }
  return Status();
}

// What a model was trained with, among a folder's files; "" where it has none, or begins from scratch.
std::string tokenizer_of(const trainer::TrainConfig& config, const std::string& folder) {
  std::error_code unknown;
  if (config.from_scratch || folder.empty() || !std::filesystem::is_directory(folder, unknown)) return "";
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "tokenizer.model"}) {
    if (std::filesystem::exists(std::filesystem::path(folder) / file, unknown)) return file;
  }
  return "";
}

// Bytes mean nothing to a trained model with a tokenizer: the text that ships with Penstock is refused, and the user's
// own is told of where the run has not learnt from it before.
Status check_text(Session& session, const trainer::TrainConfig& config,
                  const std::optional<trainer::TrainerState>& stored) {
  const std::string folder = config.model.empty() && stored ? stored->model_folder : config.model;
  const std::string tokenizer = tokenizer_of(config, folder);
  if (tokenizer.empty()) return Status();
  const auto making = [&](const std::string& file) {
    return text("`penstock data ", file, " --model ", shell_word(folder), " --out DIR`");
  };
  const std::string words = text("the model in ", folder, " reads tokens of its ", tokenizer);
  if (config.data.empty()) return Status(Code::kUsage, "data: missing: " + words, making("FILE") + ", then --data DIR");
  trainer::TrainConfig before;
  if (stored) {
    PENSTOCK_TRY_ASSIGN(found, trainer::parse_config(stored->config));
    before = std::move(found);
  }
  for (const trainer::DataFile& data : config.data) {
    const bool is_text = config.token_bytes == 0 && (data.path.ends_with(".txt") || data.path.ends_with(".md"));
    const bool is_known = std::ranges::any_of(
        before.data, [&](const trainer::DataFile& other) { return is_same_path(other.path, data.path); });
    if (!is_text || is_known) continue;
    session.progress.note(text("data: ", data.path, " is learnt byte by byte, although ", words, "; ",
                               making(shell_word(data.path)), " makes such tokens of it"));
  }
  return Status();
}

Result<Prepared> prepare_at(Session& session, const TrainFlags& flags, const engine::RankPlace& place, Data data) {
  std::vector<std::string> folders = split(flags.stores.value_or(""), ',');
  if (flags.config) {
    PENSTOCK_TRY_ASSIGN(config, config_of(flags, std::nullopt));
    folders = config.stores;
  }
  if (folders.empty()) return Status(Code::kUsage, "--store: missing", "--store /mnt/nvme0/model");
  PENSTOCK_TRY(wait_while_taken(session, folders_of_rank(folders, place), place.rank));
  std::optional<trainer::TrainerState> stored;
  if (!flags.force) {
    Result<std::optional<trainer::TrainerState>> found = stored_state(folders, place);
    if (!found.ok()) return place.ranks > 1 ? found.status() : with_way_back(found.status(), folders);
    stored = *std::move(found);
  }
  PENSTOCK_TRY_ASSIGN(config, config_of(flags, stored));
  if (stored && !flags.data) PENSTOCK_TRY(expect_data_of(*stored, config));
  if (data == Data::is_learnt) PENSTOCK_TRY(check_text(session, config, stored));
  if (place.ranks > 1) PENSTOCK_TRY(keep_stage(stored, config));
  PENSTOCK_TRY_ASSIGN(settings, settings_of(config, stored, place, trainer::cuda_usable));
  // Of each rank, which may be in a control group of its own.
  if (data == Data::is_learnt)
    PENSTOCK_TRY(refuse_more_than_memory(settings.engine.request.budgets.host_bytes, "config: penstock.host_budget"));
  return Prepared{std::move(settings), std::move(stored), flags.force};
}

// Of samples spread over all data: other data of the same length differs in some of them, if not in a word alone.
uint64_t digest_of(const trainer::Samples& samples) {
  constexpr uint64_t kSamples = 256;
  uint64_t digest = 0;
  for (uint64_t i = 0; i < kSamples; ++i) {
    const trainer::MicroBatch one = samples.batch(samples.epoch_samples() * i / kSamples, 1);
    digest = store_hash(std::as_bytes(std::span(one.tokens)), digest);
  }
  return digest;
}

// Of the config and of what it names all that ranks must have alike. Where models, data and stores lie, and how much
// memory there is for them, is each host's own.
uint64_t shared_settings(const TrainingSettings& settings) {
  constexpr uint64_t kSeed = 0x4749'464e'4f43;
  Json config = Json::parse(trainer::effective_json(settings.config));
  for (const char* key : {"model", "data", "penstock"}) config.erase(key);
  if (config.contains("lora")) config["lora"].erase("adapter");
  std::string words =
      text(config.dump(), settings.model_json, static_cast<int>(settings.config.moments), " ",
           settings.samples.epoch_samples(), " ", settings.samples.held_out_samples(), " ", digest_of(settings.samples),
           settings.device.kind == trainer::ComputeDevice::Kind::cuda ? " on GPUs" : "");
  for (const trainer::DataFile& data : settings.config.data) words += text(" ", data.weight, " ", data.hash);
  return store_hash(std::as_bytes(std::span(words)), kSeed);
}

// All ranks have a store, or none has.
Status expect_stores_of_all(engine::Ranks* ranks, Prepared& prepared) {
  using Kind = aio::StorePresence::Kind;
  const engine::RankPlace& place = prepared.settings.place;
  const std::vector<std::string> folders = folders_of_rank(prepared.settings.config.stores, place);
  const Result<aio::StorePresence> here =
      prepared.replaces ? Result<aio::StorePresence>(aio::StorePresence()) : find_store(folders, place.rank);
  PENSTOCK_TRY_ASSIGN(all, engine::presence_by_rank(ranks, here));
  prepared.makes_anew = aio::is_half_made(all);
  if (prepared.makes_anew) prepared.stored.reset();
  const auto one = std::find_if(all.begin(), all.end(), [](const auto& store) { return store.kind == Kind::there; });
  if (ranks == nullptr || prepared.makes_anew || one == all.end()) return Status();
  Status mine;
  if (here->kind != Kind::there) {
    mine = Status(Code::kUsage,
                  text("store: ", joined(folders, ","), ": no store for ", ranks->name_of(place.rank), ", although ",
                       ranks->name_of(static_cast<uint32_t>(one - all.begin())), " has one"),
                  "give each rank the folders that it was created with, or --force for new stores of all");
  }
  return agreed(ranks, mine);
}

}  // namespace

void tell_others(const engine::RankPlace& place, const Status& why) {
  const Result<std::unique_ptr<engine::Ranks>> ranks = engine::meet(options_of(place, kTellsWithin));
  if (ranks.ok()) (void)engine::agree_on(**ranks, why);
}

Result<std::unique_ptr<engine::Ranks>> meet_others(Session& session, const TrainingSettings& settings,
                                                   const SharedBytes& shared, std::chrono::milliseconds within) {
  if (settings.place.ranks == 1) return std::unique_ptr<engine::Ranks>();
  engine::RanksOptions options = options_of(settings.place, within);
  options.memory_bytes = shared.host;
  options.gives_up = [&session, &settings, says_at = std::chrono::steady_clock::now() + kSaysAfter,
                      has_said = false]() mutable {
    if (!has_said && std::chrono::steady_clock::now() > says_at) {
      has_said = true;
      session.progress.note(text("ranks: rank ", settings.place.rank, " of ", settings.place.ranks,
                                 " waits for the others at ", settings.place.meeting));
    }
    return interrupted();
  };
  if (shared.device > 0) {
    options.device = settings.device.index;
    options.device_memory_bytes = shared.device;
    options.staging_bytes = shared.staging;
  }
  options.silent_at_most = options.hangs_after =
      std::chrono::milliseconds(static_cast<int64_t>(std::min(settings.config.hangs_after_s, kLateAtMostS) * 1000));
  PENSTOCK_TRY_ASSIGN(ranks, engine::meet(options));
  PENSTOCK_TRY(engine::agree_on(*ranks, Status()));  // the first word of one that comes to say why it ends
  return Result<std::unique_ptr<engine::Ranks>>(std::move(ranks));
}

Status expect_one_run(engine::Ranks* ranks, Prepared& prepared) {
  PENSTOCK_TRY(expect_stores_of_all(ranks, prepared));
  if (ranks == nullptr) return Status();
  return engine::expect_same(*ranks, "what it trains, by config, model and data,",
                             std::array<uint64_t, 1>{shared_settings(prepared.settings)});
}

SharedBytes shared_bytes_of(const TrainingSettings& settings) {
  const engine::RankMemory memory = engine::RankedEngine::memory_of(settings.ranked(), settings.place.ranks);
  return {.host = memory.shared_bytes(), .device = memory.shared_on_device(), .staging = memory.on_device.staging};
}

Status agreed(engine::Ranks* ranks, const Status& mine) {
  if (ranks == nullptr) return mine;
  const Status all = engine::agree_on(*ranks, mine);
  return mine.ok() ? all : mine;
}

Status with_way_back(const Status& status, const TrainingSettings& settings) {
  return settings.place.ranks > 1 ? status : with_way_back(status, settings.config.stores);
}

Result<Prepared> prepare(Session& session, const TrainFlags& flags, Data data) {
  PENSTOCK_TRY_ASSIGN(place, place_of(flags));
  Result<Prepared> prepared = prepare_at(session, flags, place, data);
  if (!prepared.ok() && place.hosts > 1) tell_others(place, prepared.status());
  return prepared;
}

Status measure(Session& session, TrainingSettings& settings, engine::Ranks* ranks) {
  if (!settings.accelerator) PENSTOCK_TRY(agreed(ranks, open_accelerator(settings)));
  const MeasureOptions options{.seconds = kProbeSeconds,
                               .memory_bytes = settings.engine.request.budgets.host_bytes / 2,
                               .threads = settings.engine.update_threads,
                               .engine = aio::parse_engine_choice(settings.config.io_engine).value()};
  const std::vector<std::string> folders = folders_of_rank(settings.config.stores, settings.place);
  const engine::RankPlace& place = settings.place;
  const bool shares_drives = place.ranks_here() > 1 && folders == settings.config.stores;
  auto measured = [&]() -> Status {
    PENSTOCK_TRY_ASSIGN(machine, machine_of(session, settings.config.machine, folders, options));
    if (shares_drives) divide_among(place.ranks_here(), machine);
    compute_on(machine, settings);
    return Status();
  };
  // One after another, where they would measure one another.
  const uint32_t mine = shares_drives && settings.config.machine.empty() ? place.rank_here() : 0;
  for (uint32_t turn = 0; turn < place.ranks_here(); ++turn) {
    PENSTOCK_TRY(agreed(ranks, turn == mine ? measured() : Status()));
  }
  const trainer::ComputeDevice& device = settings.device;
  session.progress.note(text("device: ", name_of(device), device.why.empty() ? "" : text(" (", device.why, ")")));
  session.progress.note(
      text(parameters_text(settings.model), "; measuring a step of ", settings.tokens_of_step(), " tokens"));
  return agreed(ranks, measure_step(settings));
}

}  // namespace penstock::tools
