#include "tools/train/settings_of_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "aio/available_memory.h"
#include "aio/direct_folder.h"
#include "aio/make_io_engine.h"
#include "cpu_optim/checksum.h"
#include "gpu/cuda_device.h"
#include "gpu/host_device.h"
#include "runtime/trainer/config/adapters.h"
#include "runtime/trainer/config/effective_config.h"
#include "runtime/trainer/engine_link.h"
#include "runtime/trainer/files/file_io.h"
#include "runtime/trainer/files/model_folder.h"
#include "tools/penstock/quantity.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kConfigMostBytes = 1'000'000;
// What of a root's 64 KiB is left to the model's config.json, beside ours.
constexpr uint64_t kModelJsonMostBytes = 32'000;
// Of a GPU's link, 16 lanes of PCIe 4, where the machine's profile does not say it.
constexpr double kLinkGbpsUsual = 25;
// Of the host device's copies, where nobody has measured memory.
constexpr double kCopyGbpsUsual = 5;
constexpr const char* kSmallGpt =
    R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 256, "n_layer": 6, "n_head": 8,
        "vocab_size": 257, "n_positions": 1024, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0,
        "tie_word_embeddings": true})";
constexpr const char* kBuiltIn = R"({
  "sequence_length": 128, "max_steps": 100, "seed": 1,
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}},
  "scheduler": {"type": "constant", "params": {"warmup_steps": 10, "end_ratio": 0.1}},
  "penstock": {"host_budget": "1GiB"}
})";

struct ModelSource {
  std::string json;
  std::string folder;  // with weights
};

Result<ModelSource> model_source(const trainer::TrainConfig& config,
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
    PENSTOCK_TRY_ASSIGN(json, trainer::read_small_file(config.model, kConfigMostBytes));
    return ModelSource{json, ""};
  }
  PENSTOCK_TRY_ASSIGN(json, trainer::read_config_file(config.model));
  return ModelSource{json, config.from_scratch ? "" : fs::canonical(path, error).string()};
}

trainer::TokenWidth width_of(uint32_t token_bytes) {
  switch (token_bytes) {
    case 1:
      return trainer::TokenWidth::bytes_1;
    case 2:
      return trainer::TokenWidth::bytes_2;
    case 4:
      return trainer::TokenWidth::bytes_4;
    default:
      return trainer::TokenWidth::automatic;
  }
}

// The parts of a prepared set share its weight as its manifest says. Its hash goes into the config that is followed.
Status add_prepared(trainer::DataFile& data, uint32_t vocabulary, std::vector<trainer::DataSet>& into) {
  PENSTOCK_TRY_ASSIGN(opened, trainer::PreparedSet::open(data.path));
  PENSTOCK_TRY(opened->check(vocabulary));
  const std::shared_ptr<const trainer::PreparedSet> set = std::move(opened);
  const trainer::PreparedManifest& manifest = set->manifest();
  if (!data.hash.empty() && data.hash != manifest.hash)
    return Status(Code::kUsage,
                  text("data: ", data.path, ": has the hash ", manifest.hash, ", the run was told ", data.hash),
                  "the set that the run began with, or leave the hash out of the config to go on with this one");
  data.hash = manifest.hash;
  double weights = 0;
  for (const trainer::PreparedManifest::Part& part : manifest.parts) weights += part.weight;
  for (size_t i = 0; i < manifest.parts.size(); ++i)
    into.push_back(
        {.file = nullptr, .weight = data.weight * manifest.parts[i].weight / weights, .prepared = set, .part = i});
  return Status();
}

Result<trainer::Samples> samples_of(trainer::TrainConfig& config, uint32_t vocabulary) {
  std::vector<trainer::DataFile> shipped = {{shipped_text()}};
  std::vector<trainer::DataFile>& files = config.data.empty() ? shipped : config.data;
  std::vector<trainer::DataSet> sets;
  for (trainer::DataFile& data : files) {
    if (trainer::PreparedSet::is_at(data.path)) {
      PENSTOCK_TRY(add_prepared(data, vocabulary, sets));
      continue;
    }
    PENSTOCK_TRY_ASSIGN(file, trainer::TokenFile::open(data.path, width_of(config.token_bytes)));
    PENSTOCK_TRY(file->check(vocabulary));
    sets.push_back({std::move(file), data.weight});
  }
  return trainer::Samples::make(
      std::move(sets),
      {.length = config.sequence_length, .seed = config.seed, .held_out_share = config.held_out_share});
}

// Before anything is measured. Models that rotate positions have no last one.
Status refuse_more_than_positions(const trainer::TrainConfig& config, const trainer::ModelConfig& model) {
  if (model.block != trainer::BlockKind::gpt2 || config.sequence_length <= model.positions) return Status();
  return Status(Code::kUsage,
                text("config: sequence_length: ", config.sequence_length, " tokens, the model has ", model.positions,
                     " positions"),
                text("--seq ", model.positions));
}

Result<uint64_t> bytes_of_key(const char* key, const std::string& written, uint64_t otherwise) {
  if (written.empty()) return otherwise;
  Result<uint64_t> bytes = parse_bytes(written);
  if (!bytes.ok()) return bytes.status().within(text("config: penstock.", key));
  return bytes;
}

// Sizes are a node's, of which each of its ranks has its part.
Status fill_in_placement(const trainer::TrainConfig& config, uint32_t ranks, PlanRequest& request) {
  PENSTOCK_TRY_ASSIGN(host_bytes, bytes_of_key("host_budget", config.host_budget, aio::AvailableMemory::now().bytes));
  PENSTOCK_TRY_ASSIGN(nvme_bytes, bytes_of_key("nvme_budget", config.nvme_budget, request.budgets.nvme_bytes));
  PENSTOCK_TRY_ASSIGN(device_bytes, bytes_of_key("device_budget", config.device_budget, 0));
  request.budgets.device_bytes = device_bytes / ranks;
  request.budgets.host_bytes = host_bytes / ranks;
  request.budgets.nvme_bytes = nvme_bytes / ranks;
  Result<std::optional<Durability>> durability = parse_durability(config.durability);
  if (!durability.ok()) return durability.status().within("config: penstock.durability");
  request.durability = *durability;
  if (config.space == "single") request.slots = 1;
  request.choices.weights = config.weights == "host"   ? WeightTier::host
                            : config.weights == "nvme" ? WeightTier::nvme
                                                       : WeightTier::automatic;
  request.choices.host_state_share = config.host_state_share;
  if (config.micro_batch_group > 0) {
    request.choices.micro_batch_group = static_cast<uint32_t>(std::min(config.micro_batch_group, config.accumulation));
  }
  return Status();
}

std::string cut_of(const trainer::TrainConfig& config) {
  return text("stage ", config.zero_stage.value_or(3),
              config.shard_ranks == 0 ? "" : text(", mics_shard_size ", config.shard_ranks));
}

// Stages other than 0 have the same shards.
Status expect_same_shards(const trainer::TrainConfig& config, const trainer::TrainerState& stored, uint32_t ranks) {
  PENSTOCK_TRY_ASSIGN(before, trainer::parse_config(stored.config));
  if (trainer::group_ranks_of(before, ranks) == trainer::group_ranks_of(config, ranks)) return Status();
  return Status(Code::kUsage,
                text("store: ", joined(config.stores, ","), ": made with zero_optimization.", cut_of(before), ", now ",
                     cut_of(config), ", for which it would have to be cut anew"),
                text("`penstock checkpoint reshard ", joined(config.stores, ","), " NEW --ranks ", ranks, " --stage ",
                     config.zero_stage.value_or(3),
                     before.shard_ranks == config.shard_ranks ? "" : text(" --shard-size ", config.shard_ranks), "`"));
}

std::optional<ActivationChoice> activations_of(const trainer::TrainConfig& config) {
  const std::pair<const char*, ActivationChoice> choices[] = {
      {"keep", ActivationChoice::keep},
      {"recompute", ActivationChoice::recompute},
      {"offload", ActivationChoice::offload},
      {"recompute_offload", ActivationChoice::recompute_offload}};
  for (const auto& [name, choice] : choices) {
    if (config.activations == name) return choice;
  }
  return std::nullopt;
}

// Ranks that all had one for each processor would keep one another from them.
uint32_t threads_of_rank(const trainer::TrainConfig& config, uint32_t ranks) {
  if (config.threads > 0 || ranks == 1) return config.threads;
  return std::max(1u, std::thread::hardware_concurrency() / ranks);
}

StateForm form_of(const trainer::TrainConfig& config) {
  return {.optimizer = config.optimizer,
          .master = config.precision == Dtype::bf16   ? MasterForm::split
                    : config.precision == Dtype::fp16 ? MasterForm::full
                                                      : MasterForm::same,
          .moments = config.moments,
          .weight = config.precision,
          .gradient = config.precision};
}

void fill_in_workload(TrainingSettings& settings) {
  PlanRequest& request = settings.engine.request;
  Workload& workload = request.workload;
  workload = workload_of(settings.config, settings.model, settings.groups);
  workload.micro_batches = static_cast<uint32_t>(settings.config.accumulation);
  workload.codes = settings.config.codes;
  workload.clipping = {.norm = settings.config.gradient_clipping, .skips_overflow = settings.config.skips_overflow()};
  request.choices.activations = activations_of(settings.config);
  request.choices.keep_share = settings.config.keep_share;
  // Where nothing leaves the memory that it is computed in, autograd holds it: a copy less.
  const bool leaves = request.choices.activations && offloads(*request.choices.activations);
  request.stores_activations = leaves || settings.device.has_memory();
}

Status fill_in_counts(trainer::TrainConfig& config, const trainer::Samples& samples, uint32_t ranks) {
  constexpr uint64_t kMicroBatchesMost = 65536;  // of a plan
  PENSTOCK_TRY(trainer::resolve_batches(config, ranks));
  if (config.accumulation > kMicroBatchesMost) {
    return Status(Code::kUsage,
                  text("config: gradient_accumulation_steps: ", config.accumulation, " micro-batches a step, at most ",
                       kMicroBatchesMost, " expected"),
                  "larger micro-batches");
  }
  if (config.eval_every > 0 && samples.held_out_samples() == 0) {
    return Status(Code::kUsage,
                  text("config: eval_every: ", config.eval_every, ": held_out_share is ", config.held_out_share,
                       ", so that nothing is held out"),
                  "\"held_out_share\": 0.01");
  }
  if (config.early_stopping.evaluations > 0 && config.eval_every == 0) {
    return Status(Code::kUsage,
                  text("config: early_stopping.patience: ", config.early_stopping.evaluations,
                       ": eval_every is 0, so that no step is evaluated"),
                  "\"eval_every\": 100");
  }
  if (config.keep_best > 0 && config.eval_every == 0) {
    return Status(Code::kUsage,
                  text("config: keep_best: ", config.keep_best, ": eval_every is 0, so that no step is evaluated"),
                  "\"eval_every\": 100");
  }
  if (config.max_steps == 0) {
    const double samples_of_run = config.epochs * static_cast<double>(samples.epoch_samples());
    const auto batches = static_cast<uint64_t>(samples_of_run / static_cast<double>(config.train_batch));
    config.max_steps = std::max<uint64_t>(1, batches - config.leave_out.count_up_to(batches));
  }
  return trainer::resolve_schedule(config);
}

}  // namespace

void compute_on(const MachineProfile& machine, TrainingSettings& settings) {
  MachineProfile& planned = settings.engine.request.machine;
  planned = machine;
  planned.devices = 0;
  if (!settings.device.has_memory()) return;
  planned.devices = 1;
  planned.device_bytes = settings.engine.request.budgets.device_bytes;
  if (settings.device.kind == trainer::ComputeDevice::Kind::cuda) {
    if (machine.host_to_device_gbps == 0) planned.host_to_device_gbps = kLinkGbpsUsual;
    if (machine.device_to_host_gbps == 0) planned.device_to_host_gbps = kLinkGbpsUsual;
    settings.engine.device = [index = settings.device.index](uint64_t arena_bytes) {
      return gpu::open_cuda_device({.index = index, .arena_bytes = arena_bytes});
    };
    return;
  }
  // The host device: a copy reads and writes memory, as an update does.
  planned.host_to_device_gbps = planned.device_to_host_gbps =
      machine.host_gbps > 0 ? machine.host_gbps / 2 : kCopyGbpsUsual;
  settings.engine.device = [](uint64_t arena_bytes) { return gpu::open_host_device({.arena_bytes = arena_bytes}); };
}

std::string shipped_text() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = program.parent_path().parent_path() / "share/penstock/paradise-lost.txt";
  return fs::exists(installed, error) ? installed.string() : PENSTOCK_SHIPPED_TEXT;
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

Result<trainer::StartingValues> starting_values(const TrainingSettings& settings) {
  return trainer::StartingValues::open(settings.model, settings.model_folder, settings.config.lora.adapter,
                                       settings.config.seed);
}

Status make_store(const TrainingSettings& settings, aio::CreateOptions::Existing existing, const Tick& tick,
                  engine::Ranks* ranks) {
  PENSTOCK_TRY_ASSIGN(starting, starting_values(settings));
  auto initial = [&](uint32_t unit, uint64_t first, std::span<float> values) {
    PENSTOCK_TRY(starting.read(unit, first, values));
    return tick(static_cast<double>(unit) / static_cast<double>(settings.model.units.size()));
  };
  if (ranks != nullptr) return engine::RankedEngine::create(settings.ranked(), *ranks, initial, existing);
  return engine::Engine::create(settings.engine, initial, existing);
}

std::vector<std::string> folders_of_rank(const std::vector<std::string>& stores, const engine::RankPlace& place) {
  if (place.ranks == 1 || stores.size() != place.ranks_here()) return stores;
  return {stores[place.rank_here()]};
}

namespace {

// Of the ranks' stores in these folders the one to look at: this rank's own, or of those that are there the first.
std::optional<uint32_t> store_to_look_at(const std::vector<std::string>& folders, uint32_t own, bool sees_all) {
  if (has_store(folders, own)) return own;
  for (uint32_t rank = 0; !sees_all && rank < engine::kRanksMax; ++rank) {
    if (has_store(folders, rank)) return rank;
  }
  return std::nullopt;
}

}  // namespace

Result<std::optional<trainer::TrainerState>> stored_state(const std::vector<std::string>& stores,
                                                          const engine::RankPlace& place) {
  const bool sees_all = place.hosts == 1;
  const std::vector<std::string> folders = sees_all ? stores : folders_of_rank(stores, place);
  const uint32_t own = sees_all ? 0 : place.rank;
  const std::optional<uint32_t> rank = store_to_look_at(folders, own, sees_all);
  if (!rank) return std::optional<trainer::TrainerState>();
  PENSTOCK_TRY_ASSIGN(made, aio::make_io_engine());
  aio::OpenOptions options;
  options.purpose = aio::OpenOptions::Purpose::inspect;
  options.checksum = cpu_optim::checksum_function();
  options.rank = *rank;
  const auto drives = drives_of_rank(aio::direct_folders(folders, aio::Access::read_only), *rank);
  PENSTOCK_TRY_ASSIGN(store, aio::TileStore::open(*made.engine, drives, options));
  if (const uint32_t made_by = store->shape().ranks; made_by != place.ranks) {
    return Status(Code::kUsage,
                  text("store: ", folders.front(), ": made by ", made_by, made_by == 1 ? " rank" : " ranks", ", ",
                       place.ranks, place.ranks == 1 ? " is here" : " are here"),
                  text(made_by == 1 ? std::string("start without --ranks") : text("--ranks ", made_by),
                       ", or `penstock checkpoint reshard ", joined(folders, ","), " NEW --ranks ", place.ranks,
                       "`, another folder, or --force, which replaces it"));
  }
  if (*rank != own) return std::optional<trainer::TrainerState>();
  PENSTOCK_TRY_ASSIGN(state, trainer::parse_trainer_state(store->payload().trainer_state));
  return std::optional(std::move(state));
}

Result<trainer::TrainConfig> config_of(const TrainFlags& flags, const std::optional<trainer::TrainerState>& stored) {
  PENSTOCK_TRY_ASSIGN(overrides, overrides_of(flags));
  std::string words = stored ? stored->config : kBuiltIn;
  if (flags.config) {
    PENSTOCK_TRY_ASSIGN(file, trainer::read_small_file(*flags.config, kConfigMostBytes));
    words = std::move(file);
  }
  Result<trainer::TrainConfig> config = trainer::parse_config(words, overrides);
  if (!config.ok() && flags.config) return config.status().within(*flags.config);
  return config;
}

Result<TrainingSettings> settings_of(const trainer::TrainConfig& given,
                                     const std::optional<trainer::TrainerState>& stored, const engine::RankPlace& place,
                                     const trainer::CudaUsable& cuda_usable) {
  trainer::TrainConfig config = given;
  PENSTOCK_TRY(trainer::resolve_adapter(config.lora));
  PENSTOCK_TRY_ASSIGN(source, model_source(config, stored));
  if (source.json.size() > kModelJsonMostBytes) {
    return Status(Code::kUsage,
                  text("model: config.json: ", source.json.size(), " B, at most ", kModelJsonMostBytes,
                       " B expected, which every root keeps"),
                  "leave out what does not shape the model, such as tables of labels");
  }
  PENSTOCK_TRY_ASSIGN(model, model_of(config, source.json));
  PENSTOCK_TRY(refuse_more_than_positions(config, model.config));
  PENSTOCK_TRY_ASSIGN(samples, samples_of(config, model.config.vocab));
  PENSTOCK_TRY(fill_in_counts(config, samples, place.ranks));
  PENSTOCK_TRY_ASSIGN(device, trainer::choose_device(config, place, cuda_usable));
  PENSTOCK_TRY_ASSIGN(groups, trainer::group_parameters(config, model));
  TrainingSettings settings{.config = config,
                            .model_json = source.json,
                            .model_folder = source.folder,
                            .model = std::move(model),
                            .groups = std::move(groups),
                            .samples = std::move(samples),
                            .engine = {}};
  settings.place = place;
  settings.device = std::move(device);
  PENSTOCK_TRY(fill_in_placement(config, place.ranks_here(), settings.engine.request));
  fill_in_workload(settings);
  compute_on({}, settings);
  PENSTOCK_TRY_ASSIGN(io, aio::parse_engine_choice(config.io_engine));
  settings.engine.drives = engine::direct_drives(folders_of_rank(config.stores, place), io);
  settings.engine.update_threads = threads_of_rank(config, place.ranks_here());
  settings.engine.seed = config.seed;
  settings.engine.config_hash = trainer::config_identity(config);
  settings.engine.initial_state = encode(settings.initial_state());
  if (place.ranks > 1) PENSTOCK_TRY(engine::RankedEngine::check(settings.ranked(), place.ranks));
  if (stored) PENSTOCK_TRY(expect_same_shards(config, *stored, place.ranks));
  return settings;
}

std::vector<std::string> changes_since(const TrainingSettings& settings, const trainer::TrainerState& stored) {
  return trainer::changed_keys(stored.config, trainer::effective_json(settings.config));
}

Status write_run_config(const TrainingSettings& settings) {
  const std::string& folder = settings.config.run;
  if (folder.empty()) return Status();
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  return trainer::write_small_file(folder + "/config.json", trainer::effective_json(settings.config) + "\n");
}

}  // namespace penstock::tools
