#include "runtime/engine/ranks/reshard.h"

#include <algorithm>
#include <map>
#include <set>

#include "aio/host_arena.h"
#include "cpu_optim/checksum.h"
#include "runtime/engine/ranks/read_ahead.h"
#include "tiering/check.h"

namespace penstock::engine {
namespace {

constexpr uint64_t kReadBytes = ReadAhead::kMemoryBytes, kWriteBytes = aio::kChunksUnderWay * aio::kChunkBytes;
static_assert(round_up(kReadBytes, 2 * kMiB) + kWriteBytes <= kReshardBytes);

class Making {
 public:
  Making(IoEngine& io, const StoredModel& source, const Workload& model, const NewSet& wanted,
         const aio::ScrubProgress& progress)
      : io_(io),
        source_(source),
        model_(model),
        wanted_(wanted),
        progress_(progress),
        map_(model.units, wanted.ranks, wanted.group_ranks) {}

  Status run(const EngineState& counts, uint64_t tile_elements) {
    for (uint32_t rank = 0; rank < wanted_.ranks; ++rank) {
      cuts_.push_back(rank_workload(model_, map_, rank));
      shapes_.push_back(rank_shape(cuts_.back(), TileMap(cuts_.back().workload, tile_elements), rank, wanted_.ranks));
      tiles_ += shapes_.back().tiles.size();
    }
    PENSTOCK_TRY(make_room());
    PENSTOCK_TRY_ASSIGN(arena, aio::HostArena::make(kReshardBytes));
    PENSTOCK_TRY_ASSIGN(writes, arena->take("tiles to write", kWriteBytes));
    PENSTOCK_TRY_ASSIGN(reads, arena->take("tiles to read", kReadBytes));
    io_.register_memory(arena->bytes());
    const StoreId id = aio::draw_store_id();
    Status outcome;
    uint32_t rank = wanted_.ranks;
    while (outcome.ok() && rank > 0) outcome = make(--rank, id, counts, reads, writes);
    if (outcome.ok()) return outcome;
    for (++rank; rank < wanted_.ranks; ++rank) {
      for (const auto& folder : wanted_.drives[rank]) {
        if (const Status removed = folder->remove_file(aio::store_file_name(rank)); !removed.ok())
          return outcome.within(removed.message());
      }
    }
    return outcome;
  }
  DriveBytes drive_bytes() const { return drive_bytes_; }

 private:
  uint32_t slots() const { return source_.store(0).layout().slots(); }

  // What is there is removed once it is known that all ranks' stores have room. It stays locked until then.
  Status make_room() const {
    struct Space {
      std::set<std::string> paths;
      uint64_t needed_bytes = 0, free_bytes = 0, given_back_bytes = 0;
    };
    struct Old {
      std::shared_ptr<aio::DriveFolder> folder;
      std::string name;
      std::unique_ptr<File> locked;
    };
    std::map<uint64_t, Space> spaces;  // by file system
    std::vector<Old> old;
    for (uint32_t rank = 0; rank < wanted_.ranks; ++rank) {
      const auto& folders = wanted_.drives[rank];
      const std::vector<uint64_t> needed = aio::TileStore::bytes_needed(
          shapes_[rank], slots(), static_cast<uint32_t>(folders.size()), {}, state_capacity_of(cuts_[rank].workload));
      for (size_t drive = 0; drive < folders.size(); ++drive) {
        PENSTOCK_TRY_ASSIGN(free, folders[drive]->free_space());
        Space& space = spaces[free.file_system];
        space.needed_bytes += needed[drive];
        space.free_bytes = free.bytes;
        if (!space.paths.insert(folders[drive]->path()).second) continue;
        for (uint32_t other = 0; other < kRanksMax; ++other) {
          const std::string name = aio::store_file_name(other);
          if (!folders[drive]->has_file(name)) continue;
          if (wanted_.existing == aio::Existing::refuse) {
            return Status(Code::kUsage, text(folders[drive]->path(), ": has a store already: ", name),
                          "another folder, or --force, which replaces it");
          }
          Result<std::unique_ptr<File>> file = folders[drive]->open_file(name);
          const Code code = file.status().code();
          if (!file.ok() && code != Code::kCorrupt && code != Code::kDoesNotFit) return file.status();
          if (file.ok()) space.given_back_bytes += (*file)->size_bytes();
          old.push_back({folders[drive], name, file.ok() ? std::move(*file) : nullptr});
        }
      }
    }
    for (const auto& [file_system, space] : spaces) {
      const uint64_t free_bytes = space.free_bytes + space.given_back_bytes;
      if (free_bytes >= space.needed_bytes) continue;
      std::string paths;
      for (const std::string& path : space.paths) paths += (paths.empty() ? "" : ", ") + path;
      return Status(Code::kDoesNotFit,
                    text(paths, ": the stores of ", wanted_.ranks, " ranks need ", bytes_text(space.needed_bytes),
                         " here and ", bytes_text(free_bytes), " are free"),
                    "free some space, or give another drive");
    }
    for (const Old& file : old) PENSTOCK_TRY(file.folder->remove_file(file.name));
    return Status();
  }

  Status make(uint32_t rank, const StoreId& id, const EngineState& counts, std::span<std::byte> reads,
              std::span<std::byte> writes) {
    const RootPayload& before = source_.store(0).payload();
    aio::CreateOptions options;
    options.slots = slots();
    options.state_capacity = state_capacity_of(cuts_[rank].workload);
    options.id = id;
    options.checksum = cpu_optim::checksum_function();
    options.memory = writes;
    options.payload = {.step = before.step,
                       .loss_scale = before.loss_scale,
                       .config_hash = wanted_.config_hash,
                       .engine_state = counts_of(rank, counts),
                       .trainer_state = wanted_.trainer_state};
    if (before.engine_state.empty()) options.payload.engine_state.clear();
    const StoreShape& shape = shapes_[rank];
    ReadAhead ahead(io_, source_, reads, cuts_[rank], map_, shape);
    const auto fill = [&](TileId tile, uint32_t, uint64_t first_byte, std::span<std::byte> bytes) {
      if (progress_ && first_byte == 0)
        PENSTOCK_TRY(progress_(static_cast<double>(tiles_made_ + tile) / static_cast<double>(tiles_)));
      drive_bytes_.written_bytes += bytes.size();
      return ahead.fill(tile, bytes);
    };
    PENSTOCK_TRY(aio::TileStore::create(io_, wanted_.drives[rank], shape, options, fill));
    tiles_made_ += shape.tiles.size();
    drive_bytes_.read_bytes += ahead.read_bytes();
    return Status();
  }

  std::string counts_of(uint32_t rank, const EngineState& all) const {
    const RankWorkload& cut = cuts_[rank];
    EngineState here = engine_state(cut.workload, all.updates);
    for (uint32_t unit = 0; unit < all.counts.size(); ++unit) {
      if (!cut.unit_here[unit]) continue;
      UnitCounts& counts = here.counts[*cut.unit_here[unit]];
      counts.unnamed = all.counts[unit].unnamed;
      for (size_t i = 0; i < cut.parameter_here[unit].size(); ++i) {
        if (const auto parameter = cut.parameter_here[unit][i])
          counts.parameters[*parameter] = all.counts[unit].parameters[i];
      }
    }
    return encode(here);
  }

  IoEngine& io_;
  const StoredModel& source_;
  const Workload& model_;
  const NewSet& wanted_;
  const aio::ScrubProgress& progress_;
  const ShardMap map_;
  std::vector<RankWorkload> cuts_;  // by rank
  std::vector<StoreShape> shapes_;
  uint64_t tiles_ = 0, tiles_made_ = 0;
  DriveBytes drive_bytes_;
};

}  // namespace

Result<DriveBytes> reshard(IoEngine& io, const StoreSet& set, const Workload& model, const NewSet& wanted,
                           const aio::ScrubProgress& progress) {
  CHECK(!set.stores.empty() && wanted.drives.size() == wanted.ranks, wanted.drives.size(), " ranks' drives of ",
        wanted.ranks);
  const uint32_t ranks = set.stores.front()->shape().ranks;
  if (set.stores.size() != ranks) {
    return Status(Code::kUsage, text("store: ", set.stores.size(), " of ", ranks, " ranks' stores are here"),
                  "the folders of all ranks' drives");
  }
  const StoredModel source(set, model);
  PENSTOCK_TRY(source.check());
  PENSTOCK_TRY_ASSIGN(counts, source.counts(model));
  uint64_t tile_elements = 0;
  for (const auto& store : set.stores) tile_elements = std::max(tile_elements, tile_elements_of(*store));
  Making making(io, source, model, wanted, progress);
  PENSTOCK_TRY(making.run(counts, tile_elements));
  return making.drive_bytes();
}

}  // namespace penstock::engine
