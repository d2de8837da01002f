#include <algorithm>
#include <filesystem>

#include "cpu_optim/block_codes.h"
#include "runtime/engine/ranks/shard_map.h"
#include "runtime/engine/store_sweep.h"
#include "runtime/trainer/engine_link.h"
#include "tiering/arithmetic/convert.h"
#include "tools/penstock/checkpoint_common.h"
#include "tools/penstock/command.h"
#include "tools/penstock/export_output.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/quantity.h"
#include "tools/system/interrupt.h"
#include "tools/train/settings_of_run.h"

namespace penstock::tools {
namespace {

struct ExportFlags {
  std::vector<std::string> paths;  // of the store, then the folder to make
  std::string dtype = "auto";
  uint64_t shard_bytes = 5'000'000'000;
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

// What one rank's store has of the model.
struct Part {
  aio::TileStore* store = nullptr;
  struct Place {
    uint32_t unit = 0;
    uint64_t first_element = 0;
  };
  std::vector<Place> places;  // by unit of the store; one more may stand in for those of other ranks
};

bool is_alike(const StoreShape::Unit& there, const trainer::ModelUnit& here) {
  return std::equal(there.parameters.begin(), there.parameters.end(), here.parameters.begin(), here.parameters.end(),
                    [](const auto& a, const auto& b) {
                      return a.name == b.name && a.first_element == b.first_element && a.elements == b.elements;
                    });
}

// Of as many stores as are needed for all of the model. They were made for it: they say so themselves.
Result<std::vector<Part>> parts_of(const InspectedStores& stores, const trainer::TrainConfig& config,
                                   const trainer::Model& model) {
  const auto refused = Status(Code::kCorrupt, "store: its parameters are not those of the model that its root names",
                              "`penstock checkpoint scrub` says whether it is damaged");
  const uint32_t ranks = stores.ranks().front()->shape().ranks;
  if (stores.ranks().size() != ranks) {
    return Status(Code::kUsage, text("store: ", stores.ranks().size(), " of ", ranks, " ranks' stores are here"),
                  "the folders of all ranks' drives");
  }
  const engine::ShardMap map(trainer::units_of(model), ranks, trainer::group_ranks_of(config, ranks));
  std::vector<Part> parts;
  for (uint32_t rank = 0; rank < map.group_ranks(); ++rank) {
    Part part{.store = stores.ranks()[rank].get(), .places = {}};
    const std::vector<StoreShape::Unit>& units = part.store->shape().units;
    std::vector<uint64_t> elements(units.size());
    for (const StoreShape::Tile& tile : part.store->shape().tiles) elements[tile.unit] += tile.elements;
    for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
      const engine::ElementRun shard = map.shard(unit, rank);
      if (shard.elements() == 0) continue;
      const size_t here = part.places.size();
      if (here >= units.size() || (ranks == 1 && !is_alike(units[here], model.units[unit]))) return refused;
      if (units[here].name != model.units[unit].name || elements[here] != shard.elements()) return refused;
      part.places.push_back({unit, shard.begin});
    }
    if (units.size() > part.places.size() + (ranks > 1 ? 1 : 0)) return refused;
    if (part.store->payload().step != stores.ranks().front()->payload().step) {
      return Status(Code::kUsage,
                    text("store: rank 0 is at step ", stores.ranks().front()->payload().step, ", rank ", rank,
                         " at step ", part.store->payload().step),
                    "start the run again: it brings all ranks to the newest step that they have in common");
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

// Values of a tile's plane as fp32.
class TileValues {
 public:
  TileValues(const TileLayout& layout, const std::byte* bytes) : layout_(layout), bytes_(bytes) {}

  void weights(std::span<float> into) const {
    const TileLayout::Place& place = *layout_.find(Role::weight);
    const std::byte* at = bytes_ + place.offset_bytes;
    if (const TileLayout::Place* scales = layout_.find(Role::weight_scale)) {
      const BlockCode code = place.plane.dtype == Dtype::int8 ? BlockCode::int8 : BlockCode::nf4;
      const auto* of_blocks = reinterpret_cast<const float*>(bytes_ + scales->offset_bytes);
      return cpu_optim::dequantise({code, at, of_blocks}, 0, into.size(), Dtype::fp32,
                                   reinterpret_cast<std::byte*>(into.data()));
    }
    for (size_t i = 0; i < into.size(); ++i) {
      switch (place.plane.dtype) {
        case Dtype::fp32:
          into[i] = word<float>(at, i);
          break;
        case Dtype::bf16:
          into[i] = arithmetic::float_of_bf16(word<uint16_t>(at, i));
          break;
        default:
          into[i] = arithmetic::float_of_fp16(word<uint16_t>(at, i));
      }
    }
  }

  // Frozen weights, and fp32 ones, are their own masters.
  void masters(std::span<float> into) const {
    const TileLayout::Place* low = layout_.find(Role::master_low);
    const TileLayout::Place* full = layout_.find(Role::master);
    if (full != nullptr) {
      for (size_t i = 0; i < into.size(); ++i) into[i] = word<float>(bytes_ + full->offset_bytes, i);
    } else if (low != nullptr) {
      const TileLayout::Place& high = *layout_.find(Role::weight);
      for (size_t i = 0; i < into.size(); ++i) {
        into[i] = arithmetic::join(
            {word<uint16_t>(bytes_ + high.offset_bytes, i), word<uint16_t>(bytes_ + low->offset_bytes, i)});
      }
    } else {
      weights(into);
    }
  }

 private:
  template <typename Word>
  static Word word(const std::byte* at, size_t index) {
    Word value;
    std::memcpy(&value, at + index * sizeof(Word), sizeof(Word));
    return value;
  }

  const TileLayout layout_;
  const std::byte* bytes_;
};

// What of a tile has its weight, and with `masters` its master as well: the planes that lie first.
aio::TileStore::Range range_of(const TileLayout& layout, bool masters) {
  uint64_t end = 0;
  for (const TileLayout::Place& place : layout.places) {
    const Role role = place.plane.role;
    const bool wanted = role == Role::weight || role == Role::weight_scale ||
                        (masters && (role == Role::master || role == Role::master_low));
    if (wanted) end = place.offset_bytes + round_up(place.length_bytes, kAlignmentBytes);
  }
  return {0, end};
}

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

// The tiles of these units in one rank's store; the bytes that were read.
Result<uint64_t> export_part(IoEngine& io, const Part& part, std::span<const uint32_t> units, bool masters,
                             const Tick& tick, ExportOutput& output) {
  const StoreShape& shape = part.store->shape();
  uint64_t tile_bytes = kAlignmentBytes;
  std::vector<std::vector<uint32_t>> tiles_of(shape.units.size());
  for (uint32_t tile = 0; tile < shape.tiles.size(); ++tile) {
    tile_bytes = std::max(tile_bytes, shape.layout(tile).size_bytes);
    tiles_of[shape.tiles[tile].unit].push_back(tile);
  }
  std::vector<engine::StoreSweep::Visit> visits;
  for (uint32_t unit : units) {
    for (uint32_t here = 0; here < part.places.size(); ++here) {
      if (part.places[here].unit != unit) continue;
      for (uint32_t tile : tiles_of[here]) visits.push_back({tile, range_of(shape.layout(tile), masters)});
    }
  }
  // Some are read while one is written.
  constexpr uint64_t kWindows = 4;
  PENSTOCK_TRY_ASSIGN(arena, aio::HostArena::make(kWindows * tile_bytes));
  PENSTOCK_TRY_ASSIGN(memory, arena->take("tiles to export", kWindows * tile_bytes));
  BufferPool windows(Tier::host, memory, tile_bytes);
  std::vector<float> values;
  engine::StoreSweep pass(io, *part.store, windows);
  size_t done = 0;
  const auto write_tile = [&](uint32_t number, std::byte* bytes) {
    const StoreShape::Tile& tile = shape.tiles[number];
    values.resize(tile.elements);
    const TileValues tile_values(shape.layout(number), bytes);
    if (masters) {
      tile_values.masters(values);
    } else {
      tile_values.weights(values);
    }
    PENSTOCK_TRY(tick(static_cast<double>(done++) / static_cast<double>(visits.size())));
    const Part::Place& place = part.places[tile.unit];
    return output.write(place.unit, place.first_element + tile.first_element, values);
  };
  PENSTOCK_TRY(pass.run(visits, write_tile, engine::StoreSweep::Then::forget));
  return pass.moved().read_bytes;
}

Result<Answer> export_store(Session& session, const ExportFlags& flags) {
  if (flags.paths.size() < 2) {
    return Status(Code::kUsage, "checkpoint export: the folders of a store, then the folder to make: one path is given",
                  "penstock checkpoint export /mnt/nvme0/run ./exported");
  }
  const std::string into = flags.paths.back();
  PENSTOCK_TRY_ASSIGN(stores, InspectedStores::open({flags.paths.begin(), flags.paths.end() - 1}));
  aio::TileStore& store = *stores->ranks().front();
  PENSTOCK_TRY_ASSIGN(state, trainer::parse_trainer_state(store.payload().trainer_state));
  PENSTOCK_TRY_ASSIGN(config, trainer::parse_config(state.config));
  PENSTOCK_TRY_ASSIGN(model, model_of(config, state.model_json));
  PENSTOCK_TRY_ASSIGN(parts, parts_of(*stores, config, model));
  const Trained trained{std::move(state), std::move(config), std::move(model)};
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
  // One store is read without a pause; of several, a unit's parts come together.
  const size_t at_once = parts.size() == 1 ? wanted.size() : 1;
  uint64_t read_bytes = 0;
  for (size_t first = 0; first < wanted.size(); first += at_once) {
    const std::span<const uint32_t> units = std::span(wanted).subspan(first, at_once);
    const auto share = [&](size_t done) { return static_cast<double>(done) / static_cast<double>(wanted.size()); };
    for (const Part& part : parts) {
      const Tick tick = ticking(session, "export", share(first), share(first + at_once));
      PENSTOCK_TRY_ASSIGN(read, export_part(stores->engine(), part, units, masters, tick, *output));
      read_bytes += read;
    }
  }
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
      "Write a store's newest step as safetensors",
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
       {"penstock checkpoint export /mnt/nvme0/lora ./merged --merged", "A model with its adapters added"}},
      [flags](Options& options) -> Action {
        options.paths("PATH", flags->paths, 1,
                      "The folders of the store, one on each drive, in any order; then the folder to make");
        options.choice("--dtype", flags->dtype, {"auto", "bf16", "fp16", "fp32"},
                       "Of the files; auto: what forward computes with");
        options.flag("--adapter", flags->adapter, "Of a run with adapters: these alone, as PEFT reads them");
        options.flag("--merged", flags->merged,
                     "Of a run with adapters: the whole model, adapters added to its weights");
        options.bytes("--shard", flags->shard_bytes, "Bytes of one file, at most");
        return [flags](Session& session) { return export_store(session, *flags); };
      }};
}

}  // namespace penstock::tools
