#include <algorithm>
#include <filesystem>

#include "tools/penstock/checkpoint_common.h"
#include "tools/penstock/command.h"
#include "tools/penstock/export_output.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/quantity.h"
#include "tools/penstock/store_weights.h"
#include "tools/penstock/way_back.h"
#include "tools/system/interrupt.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kShardBytesLeast = 4 * kKiB;

struct ExportFlags {
  std::vector<std::string> paths;  // of the store, then the folder to make
  std::string dtype = "auto";
  uint64_t shard_bytes = 5'000'000'000;
  std::optional<uint64_t> step;
  bool adapter = false, merged = false;
};

trainer::FileDtype file_dtype(const std::string& name, Dtype trained) {
  if (name == "fp32") return trainer::FileDtype::f32;
  if (name == "bf16") return trainer::FileDtype::bf16;
  if (name == "fp16") return trainer::FileDtype::f16;
  return trained == Dtype::fp32   ? trainer::FileDtype::f32
         : trained == Dtype::bf16 ? trainer::FileDtype::bf16
                                  : trainer::FileDtype::f16;
}

bool is_of(trainer::FileDtype file, Dtype trained) { return file == file_dtype("auto", trained); }

enum class Kind { model, adapter, merged };

Result<Kind> kind_of(const ExportFlags& flags, const Trained& trained) {
  if (flags.adapter && flags.merged)
    return Status(Code::kUsage, "checkpoint export: --adapter and --merged: one of them expected");
  if (!trained.model.adapters) {
    if (!flags.adapter && !flags.merged) return Kind::model;
    return Status(
        Code::kUsage,
        text("checkpoint export: ", flags.adapter ? "--adapter" : "--merged", ": the run trained no adapters"),
        "leave it out: the whole model is written");
  }
  if (flags.adapter) return Kind::adapter;
  return flags.merged || !trained.has_base() ? Kind::merged : Kind::adapter;
}

// The bytes that were read.
Result<uint64_t> write_units(StoreWeights& weights, std::span<const uint32_t> wanted, bool masters, const Tick& tick,
                             ExportOutput& output) {
  const uint64_t tiles = weights.tiles(wanted);
  uint64_t done = 0;
  std::vector<float> values;
  const auto write_tile = [&](uint32_t unit, uint64_t first, const TileValues& tile) {
    values.resize(tile.elements());
    if (masters) {
      tile.masters(values);
    } else {
      tile.weights(Dtype::fp32, std::as_writable_bytes(std::span(values)).data());
    }
    PENSTOCK_TRY(tick(static_cast<double>(done++) / static_cast<double>(tiles)));
    return output.write(unit, first, values);
  };
  const auto planes = masters ? StoreWeights::Planes::weights_and_masters : StoreWeights::Planes::weights;
  // One store is read without a pause; of several, a unit's parts come together.
  const size_t at_once = weights.parts() == 1 ? std::max<size_t>(1, wanted.size()) : 1;
  uint64_t read_bytes = 0;
  for (size_t first = 0; first < wanted.size(); first += at_once) {
    PENSTOCK_TRY_ASSIGN(read, weights.read(wanted.subspan(first, at_once), planes, write_tile));
    read_bytes += read;
  }
  return read_bytes;
}

Result<Answer> export_store(Session& session, const ExportFlags& flags) {
  if (flags.paths.size() < 2) {
    return Status(Code::kUsage, "checkpoint export: the folders of a store, then the folder to make: one path is given",
                  "penstock checkpoint export /mnt/nvme0/run ./exported");
  }
  const std::string into = flags.paths.back();
  PENSTOCK_TRY_ASSIGN(stores, InspectedStores::open({flags.paths.begin(), flags.paths.end() - 1}));
  if (flags.step) PENSTOCK_TRY(stores->go_to(*flags.step));
  if (flags.shard_bytes < kShardBytesLeast) {
    return Status(Code::kUsage, text("--shard: ", flags.shard_bytes, " B a file: at least 4 KiB expected"),
                  "--shard 5GB");
  }
  aio::TileStore& store = *stores->ranks().front();
  PENSTOCK_TRY_ASSIGN(trained, trained_by(store.payload()));
  PENSTOCK_TRY_ASSIGN(weights, StoreWeights::find(*stores, trained.config, trained.model));
  PENSTOCK_TRY_ASSIGN(kind, kind_of(flags, trained));

  trainer::ModelFolderWriter::Options options;
  options.dtype = file_dtype(flags.dtype, trained.config.precision);
  options.shard_bytes = flags.shard_bytes;
  std::unique_ptr<ExportOutput> output;
  if (kind == Kind::adapter) {
    PENSTOCK_TRY_ASSIGN(made, make_adapter_output(into, trained, options.dtype));
    output = std::move(made);
  } else {
    if (trained.has_base()) {
      options.carry_from = trained.state.model_folder;
    } else if (!trained.state.model_folder.empty()) {
      session.progress.note(
          text("the tokenizer's files do not come along: ", trained.state.model_folder, " is not there"));
    }
    PENSTOCK_TRY_ASSIGN(made, make_model_output(into, trained, options));
    output = std::move(made);
  }

  const bool masters = !is_of(options.dtype, trained.config.precision);
  std::vector<uint32_t> wanted;
  for (uint32_t unit : units_in_order(trained.model)) {
    if (output->wants(unit)) wanted.push_back(unit);
  }
  PENSTOCK_TRY_ASSIGN(read_bytes, write_units(*weights, wanted, masters, ticking(session, "export"), *output));
  PENSTOCK_TRY(output->finish());

  constexpr const char* kKinds[] = {"model", "adapter", "merged"};
  Answer answer;
  answer.json = {{"step", store.payload().step},
                 {"kind", kKinds[static_cast<size_t>(kind)]},
                 {"parameters", output->parameters()},
                 {"dtype", trainer::name_of(options.dtype)},
                 {"architecture", trained.model.config.architecture},
                 {"read_bytes", read_bytes},
                 {"tokenizer_from", options.carry_from.empty() ? Json() : Json(options.carry_from)},
                 {"path", into}};
  answer.text = text("step ", store.payload().step, ": ", output->parameters(), " parameters",
                     kind == Kind::adapter  ? " of adapters"
                     : kind == Kind::merged ? ", adapters added to the weights,"
                                            : "",
                     " as ", trainer::name_of(options.dtype), " in ", into, "\n");
  return answer;
}

}  // namespace

Verb checkpoint_export_verb() {
  auto flags = std::make_shared<ExportFlags>();
  return {
      "checkpoint export",
      "Write a store's newest step, or one that was kept, as safetensors",
      "Makes a folder as Hugging Face has it: config.json, model.safetensors or shards with an index, and the "
      "tokenizer's\n"
      "and generation's files of the folder that the run began with. Weights pass tile by tile: no more than a few "
      "tiles\n"
      "are in memory. The numbers are those that forward computes with, or fp32 masters with --dtype fp32. Of a run "
      "that\n"
      "trained adapters (LoRA) they are written as PEFT has them, adapter_config.json and "
      "adapter_model.safetensors; with\n"
      "--merged, or where the folder of the frozen weights is gone, a whole model that has them added.",
      {{"penstock checkpoint export /mnt/nvme0/run ./exported", "As transformers loads it"},
       {"penstock checkpoint export /mnt/nvme0/run,/mnt/nvme1/run ./exported --dtype fp32", "The masters"},
       {"penstock checkpoint export /mnt/nvme0/run ./best --step 400", "A step that was kept, the store as it is"},
       {"penstock checkpoint export /mnt/nvme0/lora ./merged --merged", "A model with its adapters added"}},
      [flags](Options& options) -> Action {
        options.paths("PATH", flags->paths, 1,
                      "The folders of the store, one on each drive, in any order; then the folder to make");
        options.choice("--dtype", flags->dtype, {"auto", "bf16", "fp16", "fp32"},
                       "Of the files; auto: what forward computes with");
        options.flag("--adapter", flags->adapter, "Of a run with adapters: these alone, as PEFT reads them");
        options.flag("--merged", flags->merged,
                     "Of a run with adapters: the whole model, adapters added to its weights");
        options.count("--step", flags->step, "One that `penstock checkpoint ls` lists as kept; else the newest");
        options.bytes("--shard", flags->shard_bytes, "Bytes of one file, at most");
        return [flags](Session& session) -> Result<Answer> {
          Result<Answer> answer = export_store(session, *flags);
          if (answer.ok() || flags->step) return answer;
          return with_way_back(answer.status(), {flags->paths.begin(), flags->paths.end() - 1});
        };
      }};
}

}  // namespace penstock::tools
