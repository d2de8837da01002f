#include "runtime/engine/ranks/set_making.h"

#include <algorithm>
#include <map>
#include <set>

#include "aio/host_arena.h"
#include "aio/store/store_presence.h"
#include "cpu_optim/checksum.h"
#include "runtime/engine/ranks/rank_place.h"
#include "runtime/engine/root_state.h"
#include "tiering/check.h"

namespace penstock::engine {
namespace {

constexpr uint64_t kWriteBytes = aio::kChunksUnderWay * aio::kChunkBytes;

class Making {
 public:
  Making(IoEngine& io, const Workload& model, const NewSet& wanted, const SetSizes& sizes, SetContent& content,
         const aio::ScrubProgress& progress)
      : io_(io),
        wanted_(wanted),
        sizes_(sizes),
        content_(content),
        progress_(progress),
        map_(model.units, wanted.ranks, wanted.group_ranks) {
    for (uint32_t rank = 0; rank < wanted_.ranks; ++rank) {
      cuts_.push_back(rank_workload(model, map_, rank));
      shapes_.push_back(
          rank_shape(cuts_.back(), TileMap(cuts_.back().workload, sizes.tile_elements), rank, wanted_.ranks));
      tiles_ += shapes_.back().tiles.size();
    }
  }

  Status run() {
    PENSTOCK_TRY(make_room());
    PENSTOCK_TRY_ASSIGN(arena, aio::HostArena::make(round_up(kWriteBytes, 2 * kMiB) + content_.memory_bytes()));
    PENSTOCK_TRY_ASSIGN(writes, arena->take("tiles to write", kWriteBytes));
    PENSTOCK_TRY_ASSIGN(reads, arena->take("what they are made of", content_.memory_bytes()));
    io_.register_memory(arena->bytes());
    const StoreId id = aio::draw_store_id();
    Status outcome;
    uint32_t first_made = wanted_.ranks;
    while (first_made > 0 && outcome.ok()) {
      outcome = make(first_made - 1, id, reads, writes);
      if (outcome.ok()) --first_made;
    }
    for (uint32_t done = 0; outcome.ok() && done < wanted_.ranks; ++done)
      outcome = aio::TileStore::complete(io_, wanted_.drives[done], done, id);
    if (outcome.ok()) return outcome;
    for (uint32_t rank = first_made; rank < wanted_.ranks; ++rank) {
      if (const Status removed = aio::remove_store(io_, wanted_.drives[rank], rank, id); !removed.ok())
        return outcome.within(removed.message());
    }
    return outcome;
  }
  uint64_t written_bytes() const { return written_bytes_; }

 private:
  struct Old {
    std::shared_ptr<aio::DriveFolder> folder;
    uint32_t rank = 0;
    std::string name;
    std::unique_ptr<File> locked;  // null where nobody can use it
  };

  // What is there is removed once it is known that all ranks' stores have room. It stays locked until then.
  Status make_room() const {
    struct Space {
      std::set<std::string> paths;
      uint64_t needed_bytes = 0, free_bytes = 0, given_back_bytes = 0;
    };
    std::map<uint64_t, Space> spaces;  // by file system
    std::vector<Old> old;
    for (uint32_t rank = 0; rank < wanted_.ranks; ++rank) {
      const auto& folders = wanted_.drives[rank];
      const std::vector<uint64_t> needed =
          aio::TileStore::bytes_needed(shapes_[rank], sizes_.slots, static_cast<uint32_t>(folders.size()), {},
                                       state_capacity_of(cuts_[rank].workload));
      for (size_t drive = 0; drive < folders.size(); ++drive) {
        PENSTOCK_TRY_ASSIGN(free, folders[drive]->free_space());
        Space& space = spaces[free.file_system];
        space.needed_bytes += needed[drive];
        space.free_bytes = free.bytes;
        if (!space.paths.insert(folders[drive]->path()).second) continue;
        for (uint32_t other = 0; other < kRanksMax; ++other) {
          const std::string store = aio::store_file_name(other);
          for (const std::string& name : {store, aio::unnamed_file(store)}) {
            if (!folders[drive]->has_file(name)) continue;
            Result<std::unique_ptr<File>> file = folders[drive]->open_file(name);
            const Code code = file.status().code();
            if (!file.ok() && code != Code::kCorrupt && code != Code::kDoesNotFit) return file.status();
            if (file.ok()) space.given_back_bytes += (*file)->size_bytes();
            old.push_back({folders[drive], other, name, file.ok() ? std::move(*file) : nullptr});
          }
        }
      }
    }
    PENSTOCK_TRY(refuse_whole_stores(old));
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

  // What was cut short while it was made is replaced unasked.
  Status refuse_whole_stores(const std::vector<Old>& old) const {
    if (wanted_.existing == aio::Existing::replace) return Status();
    std::map<uint32_t, std::vector<const File*>> files;
    const Old* first = nullptr;
    for (const Old& file : old) {
      if (file.name != aio::store_file_name(file.rank)) continue;
      files[file.rank].push_back(file.locked.get());
      if (first == nullptr) first = &file;
    }
    std::vector<aio::StorePresence> found;
    for (const auto& [rank, of_rank] : files) found.push_back(aio::presence_of(io_, of_rank));
    if (first == nullptr || aio::is_half_made(found)) return Status();
    return Status(Code::kUsage, text(first->folder->path(), ": has a store already: ", first->name),
                  "another folder, or --force, which replaces it");
  }

  Status make(uint32_t rank, const StoreId& id, std::span<std::byte> reads, std::span<std::byte> writes) {
    const StoreShape& shape = shapes_[rank];
    aio::CreateOptions options;
    options.slots = sizes_.slots;
    options.state_capacity = state_capacity_of(cuts_[rank].workload);
    options.id = id;
    options.is_one_of_several = true;
    options.checksum = cpu_optim::checksum_function();
    options.memory = writes;
    options.payload = content_.root_of(cuts_[rank]);
    options.payload.config_hash = wanted_.config_hash;
    options.payload.trainer_state = wanted_.trainer_state;
    const aio::FillTile fill = content_.fill_of(rank, cuts_[rank], map_, shape, reads);
    const auto fill_and_count = [&](TileId tile, uint32_t plane, uint64_t first_byte, std::span<std::byte> bytes) {
      if (progress_ && first_byte == 0)
        PENSTOCK_TRY(progress_(static_cast<double>(tiles_made_ + tile) / static_cast<double>(tiles_)));
      written_bytes_ += bytes.size();
      return fill(tile, plane, first_byte, bytes);
    };
    PENSTOCK_TRY(aio::TileStore::create(io_, wanted_.drives[rank], shape, options, fill_and_count));
    tiles_made_ += shape.tiles.size();
    return Status();
  }

  IoEngine& io_;
  const NewSet& wanted_;
  const SetSizes& sizes_;
  SetContent& content_;
  const aio::ScrubProgress& progress_;
  const ShardMap map_;
  std::vector<RankWorkload> cuts_;  // by rank
  std::vector<StoreShape> shapes_;
  uint64_t tiles_ = 0, tiles_made_ = 0, written_bytes_ = 0;
};

}  // namespace

RankWorkload rank_workload(const Workload& model, const ShardMap& map, uint32_t rank) {
  if (map.ranks() > 1) return workload_of(model, map, rank);
  RankWorkload whole{.workload = model, .unit_here = {}, .model_unit = {}, .parameter_here = {}};
  for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
    whole.unit_here.push_back(unit);
    whole.model_unit.push_back(unit);
    std::vector<std::optional<uint32_t>>& parameters = whole.parameter_here.emplace_back();
    for (uint32_t i = 0; i < model.units[unit].parameters.size(); ++i) parameters.push_back(i);
  }
  return whole;
}

StoreShape rank_shape(const RankWorkload& cut, const TileMap& tiles, uint32_t rank, uint32_t ranks) {
  StoreShape shape = StoreShape::of(cut.workload, tiles, rank);
  shape.ranks = ranks;
  return shape;
}

InitialValues values_of_rank(const InitialValues& of_model, const RankWorkload& cut, const ShardMap& map,
                             uint32_t rank) {
  return [&of_model, &cut, &map, rank](uint32_t unit, uint64_t first, std::span<float> values) {
    const std::optional<uint32_t> whole = cut.model_unit[unit];
    if (whole) return of_model(*whole, map.shard(*whole, rank).begin + first, values);
    std::fill(values.begin(), values.end(), 0.0f);
    return Status();
  };
}

Result<uint64_t> make_set(IoEngine& io, const Workload& model, const NewSet& wanted, const SetSizes& sizes,
                          SetContent& content, const aio::ScrubProgress& progress) {
  CHECK(wanted.drives.size() == wanted.ranks, wanted.drives.size(), " ranks' drives of ", wanted.ranks);
  Making making(io, model, wanted, sizes, content, progress);
  PENSTOCK_TRY(making.run());
  return making.written_bytes();
}

}  // namespace penstock::engine
