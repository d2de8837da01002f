#include "tools/train/settings_of_run.h"

#include <algorithm>
#include <thread>

#include "aio/available_memory.h"
#include "aio/make_io_engine.h"
#include "gpu/cuda_device.h"
#include "gpu/host_device.h"
#include "runtime/trainer/config/adapters.h"
#include "runtime/trainer/config/effective_config.h"
#include "tools/penstock/config_checks.h"
#include "tools/system/words.h"
#include "tools/train/model_of_run.h"
#include "tools/train/samples_of_run.h"
#include "tools/train/store_of_run.h"

namespace penstock::tools {
namespace {

// Of a GPU's link, 16 lanes of PCIe 4, where the machine's profile does not say it.
constexpr double kLinkGbpsUsual = 25;
// Of the host device's copies, where nobody has measured memory.
constexpr double kCopyGbpsUsual = 5;

// Before anything is measured. Models that rotate positions have no last one.
Status refuse_more_than_positions(const trainer::TrainConfig& config, const trainer::ModelConfig& model) {
  if (model.block != trainer::BlockKind::gpt2 || config.sequence_length <= model.positions) return Status();
  return Status(Code::kUsage,
                text("config: sequence_length: ", config.sequence_length, " tokens, the model has ", model.positions,
                     " positions"),
                text("--seq ", model.positions));
}

// Sizes are a node's, of which each of its ranks has its part.
Status fill_in_placement(const trainer::TrainConfig& config, uint32_t ranks, PlanRequest& request) {
  PENSTOCK_TRY_ASSIGN(places, places_of(config));
  request.budgets.device_bytes = places.device_bytes.value_or(0) / ranks;
  request.budgets.host_bytes = places.host_bytes.value_or(aio::AvailableMemory::now().bytes) / ranks;
  request.budgets.nvme_bytes = places.nvme_bytes.value_or(request.budgets.nvme_bytes) / ranks;
  request.durability = places.durability;
  if (config.space == "single") request.slots = 1;
  request.choices.weights = config.weights == "host"   ? WeightTier::host
                            : config.weights == "nvme" ? WeightTier::nvme
                                                       : WeightTier::automatic;
  request.choices.host_state_share = config.host_state_share;
  request.choices.device_share = config.device_share;
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
                text("`penstock checkpoint reshard ", shell_word(joined(config.stores, ",")), " NEW --ranks ", ranks,
                     " --stage ", config.zero_stage.value_or(3),
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

Result<TrainingSettings> settings_of(const trainer::TrainConfig& given,
                                     const std::optional<trainer::TrainerState>& stored, const engine::RankPlace& place,
                                     const trainer::CudaUsable& cuda_usable) {
  trainer::TrainConfig config = given;
  PENSTOCK_TRY(refuse_contradictions(config));
  PENSTOCK_TRY(trainer::resolve_adapter(config.lora));
  PENSTOCK_TRY_ASSIGN(source, model_source(config, stored));
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

}  // namespace penstock::tools
