#include "runtime/engine/ranks/reshard.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <set>

#include "aio/host_arena.h"
#include "aio/store/tile_chunks.h"
#include "cpu_optim/checksum.h"
#include "runtime/engine/ranks/rank_place.h"
#include "runtime/engine/ranks/shard_map.h"
#include "runtime/engine/root_state.h"
#include "tiering/check.h"

namespace penstock::engine {
namespace {

// As many reads are under way as creation has writes. A chunk of a plane may begin and end within an aligned sector.
constexpr uint64_t kReadsUnderWay = aio::kChunksUnderWay;
constexpr uint64_t kWindowBytes = aio::kChunkBytes + 2 * kAlignmentBytes;
constexpr uint64_t kReadBytes = kReadsUnderWay * kWindowBytes, kWriteBytes = aio::kChunksUnderWay * aio::kChunkBytes;
static_assert(round_up(kReadBytes, 2 * kMiB) + kWriteBytes <= kReshardBytes);

// One that is alone has the model as it is.
RankWorkload cut_for(const Workload& model, const ShardMap& map, uint32_t rank) {
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

StoreShape shape_of(const RankWorkload& cut, const TileMap& tiles, uint32_t rank, uint32_t ranks) {
  StoreShape shape = StoreShape::of(cut.workload, tiles, rank);
  shape.ranks = ranks;
  return shape;
}

uint64_t tile_elements_of(const aio::TileStore& store) {
  uint64_t most = 0;
  for (const StoreShape::Tile& tile : store.shape().tiles) most = std::max(most, tile.elements);
  return round_up(most, kBlockElements);
}

// A run of a plane's elements in one tile of the set: whole blocks of its checksums.
struct Piece {
  uint32_t rank = 0;
  TileId tile = 0;
  uint32_t plane = 0;
  ElementRun run;  // of the tile
};

// The model as a set of stores has it.
class Source {
 public:
  Source(const StoreSet& set, const Workload& model)
      : set_(set), map_(model.units, static_cast<uint32_t>(set.stores.size()), set.group_ranks) {
    for (uint32_t rank = 0; rank < map_.ranks(); ++rank) {
      cuts_.push_back(cut_for(model, map_, rank));
      tiles_.emplace_back(cuts_.back().workload, tile_elements_of(store(rank)));
    }
  }

  Status check() const {
    const RootPayload& first = store(0).payload();
    for (uint32_t rank = 0; rank < map_.ranks(); ++rank) {
      const StoreShape expected = shape_of(cuts_[rank], tiles_[rank], rank, map_.ranks());
      if (const std::string difference = expected.first_difference(store(rank).shape()); !difference.empty()) {
        return Status(Code::kUsage, text("store of rank ", rank, ": holds another model: ", difference),
                      "'here' is the model that rank 0's root names, 'there' the store");
      }
      if (store(rank).id() != store(0).id()) {
        return Status(
            Code::kUsage,
            text("store of rank ", rank, ": belongs to run ", store(rank).id(), ", rank 0's to ", store(0).id()),
            "the folders of one run");
      }
      if (store(rank).payload().step != first.step) {
        return Status(
            Code::kUsage,
            text("store: rank 0 is at step ", first.step, ", rank ", rank, " at step ", store(rank).payload().step),
            "start the run again: it brings all ranks to the newest step that they have in common");
      }
    }
    return Status();
  }

  // The counts of all the model's units. Ranks that have parts of one must agree.
  Result<EngineState> counts(const Workload& model) const {
    std::optional<EngineState> all;
    std::vector<bool> has_unit(model.units.size());
    std::vector<std::vector<bool>> has_parameter;
    for (const Unit& unit : model.units) has_parameter.emplace_back(unit.parameters.size());
    bool agree = true;
    const auto take = [&agree](uint64_t count, uint64_t& into, auto has) {
      agree = agree && (!has || into == count);
      into = count;
      has = true;
    };
    for (uint32_t rank = 0; rank < map_.ranks(); ++rank) {
      PENSTOCK_TRY_ASSIGN(state, parse_engine_state(store(rank).payload(), cuts_[rank].workload));
      if (!all) all = engine_state(model, state.updates);
      agree = agree && all->updates == state.updates;
      for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
        const std::optional<uint32_t> here = cuts_[rank].unit_here[unit];
        if (!here) continue;
        UnitCounts& counts = all->counts[unit];
        take(state.counts[*here].unnamed, counts.unnamed, has_unit[unit]);
        for (size_t i = 0; i < counts.parameters.size(); ++i) {
          const std::optional<uint32_t> parameter = cuts_[rank].parameter_here[unit][i];
          if (parameter) take(state.counts[*here].parameters[*parameter], counts.parameters[i], has_parameter[unit][i]);
        }
      }
    }
    if (!agree) return Status(Code::kCorrupt, "store: the ranks' counts of updates differ");
    return std::move(*all);
  }

  // Where the unit's elements from `first` on lie: as many of `count` as are in one tile. REQUIRES: it begins a block.
  Piece find(uint32_t unit, uint32_t plane, uint64_t first, uint64_t count) const {
    uint32_t rank = 0;
    while (map_.shard(unit, rank).end <= first) ++rank;
    const uint64_t in_shard = first - map_.shard(unit, rank).begin;
    const TileMap& tiles = tiles_[rank];
    const auto tile =
        static_cast<TileId>(tiles.first_of(*cuts_[rank].unit_here[unit]) + in_shard / tiles.tile_elements());
    const uint64_t in_tile = in_shard - tiles[tile].first_element;
    CHECK(in_tile % kBlockElements == 0, "element ", first, " of unit ", unit, " begins no block");
    return {rank, tile, plane, {in_tile, std::min(in_tile + count, tiles[tile].elements)}};
  }

  aio::TileStore& store(uint32_t rank) const { return *set_.stores[rank]; }

 private:
  const StoreSet& set_;
  const ShardMap map_;
  std::vector<RankWorkload> cuts_;  // by rank
  std::vector<TileMap> tiles_;
};

// What creation asks for one after the other is read ahead.
class ReadAhead {
 public:
  ReadAhead(IoEngine& io, const Source& source, std::span<std::byte> memory, const RankWorkload& cut,
            const ShardMap& map, const StoreShape& shape)
      : io_(io), source_(source), windows_(Tier::host, memory, kWindowBytes), cut_(cut), map_(map), shape_(shape) {}

  ~ReadAhead() {
    for (Reading& reading : under_way_) {
      (void)std::move(reading.transfer).wait();
      source_.store(reading.piece.rank).end_read(reading.place.place);
    }
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // REQUIRES: in the order of TileStore::create().
  Status fill(TileId tile, std::span<std::byte> bytes) {
    if (!model_unit(tile)) {  // it stands in for units of other ranks
      std::fill(bytes.begin(), bytes.end(), std::byte{0});
      return Status();
    }
    while (!bytes.empty()) {
      PENSTOCK_TRY(read_ahead());
      CHECK(!under_way_.empty(), "tile ", tile, ": ", bytes.size(), " B more are asked for than there are");
      Reading next = std::move(under_way_.front());
      under_way_.pop_front();
      const Result<Lease> window = std::move(next.transfer).wait();
      Status status = window.status();
      if (status.ok()) status = compare(next, window->data());
      source_.store(next.piece.rank).end_read(next.place.place);
      PENSTOCK_TRY(status);
      std::memcpy(bytes.data(), window->data() + next.skip_bytes, next.length_bytes);
      bytes = bytes.subspan(next.length_bytes);
      read_bytes_ += next.length_bytes;
    }
    return Status();
  }
  uint64_t read_bytes() const { return read_bytes_; }

 private:
  struct Reading {
    Piece piece;
    aio::TileStore::Reading place;
    uint64_t tile_offset_bytes = 0;  // of what is in the window
    uint64_t skip_bytes = 0;         // in the window, before the piece
    uint64_t length_bytes = 0;
    Transfer transfer;
  };

  std::optional<uint32_t> model_unit(TileId tile) const { return cut_.model_unit[shape_.tiles[tile].unit]; }

  Status read_ahead() {
    while (windows_.pieces_free() > 0) {
      const std::optional<Piece> piece = next_piece();
      if (!piece) return Status();
      aio::TileStore& store = source_.store(piece->rank);
      const TileLayout layout = store.shape().layout(piece->tile);
      const TileLayout::Place& plane = layout.places[piece->plane];
      const uint64_t begin = plane.offset_bytes + plane.plane.bytes(piece->run.begin);
      const uint64_t length = plane.plane.bytes(piece->run.elements());
      const uint64_t aligned = round_down(begin, kAlignmentBytes);
      std::optional<aio::TileStore::Reading> place =
          store.begin_read(piece->tile, {aligned, round_up(begin + length, kAlignmentBytes) - aligned});
      if (!place) {
        return Status(Code::kEnvironment,
                      text("read of tile ", piece->tile, " of rank ", piece->rank, ": it is still being written"));
      }
      const std::vector<Extent> extents = place->extents;
      under_way_.push_back({*piece, std::move(*place), aligned, begin - aligned, length,
                            io_.read(extents, *windows_.try_lease(), IoEngine::kWhenever)});
    }
    return Status();
  }

  std::optional<Piece> next_piece() {
    while (wanted_.begin >= wanted_.end) {
      if (!next_chunk()) return std::nullopt;
    }
    const Piece piece = source_.find(unit_, plane_, wanted_.begin, wanted_.elements());
    wanted_.begin += piece.run.elements();
    return piece;
  }

  bool next_chunk() {
    while (chunk_ == chunks_.size()) {
      if (tile_ == shape_.tiles.size()) return false;
      chunks_ = model_unit(tile_) ? aio::chunks_of(shape_, tile_) : std::vector<aio::TileChunk>();
      chunk_ = 0;
      ++tile_;
    }
    const aio::TileChunk& chunk = chunks_[chunk_++];
    const StoreShape::Tile& tile = shape_.tiles[chunk.tile];
    const uint64_t block_bytes = shape_.kind(chunk.tile).planes[chunk.plane].bytes(kBlockElements);
    unit_ = *model_unit(chunk.tile);
    plane_ = chunk.plane;
    const uint64_t first = map_.shard(unit_, shape_.rank).begin + tile.first_element;
    const uint64_t begin_block = chunk.plane_offset_bytes / block_bytes;
    const uint64_t end_block = begin_block + ceil_div(chunk.length_bytes, block_bytes);
    wanted_ = {first + begin_block * kBlockElements, first + std::min(end_block * kBlockElements, tile.elements)};
    return true;
  }

  Status compare(const Reading& reading, const std::byte* window) const {
    const aio::TileStore& store = source_.store(reading.piece.rank);
    const TileId tile = reading.piece.tile;
    const TileLayout layout = store.shape().layout(tile);
    for (uint64_t first = reading.piece.run.begin; first < reading.piece.run.end; first += kBlockElements) {
      const uint64_t number = first / kBlockElements * layout.places.size() + reading.piece.plane;
      const TileBlock block = block_of(layout, store.shape().tiles[tile].elements, number);
      const std::span<const std::byte> bytes(window + (block.offset_bytes - reading.tile_offset_bytes),
                                             block.length_bytes);
      if (cpu_optim::checksum_function()(bytes, checksum_seed(tile, number)) == reading.place.checksums[number])
        continue;
      return store.checksum_mismatch(reading.place.place, number).within("read");
    }
    return Status();
  }

  IoEngine& io_;
  const Source& source_;
  BufferPool windows_;
  const RankWorkload& cut_;
  const ShardMap& map_;
  const StoreShape& shape_;
  std::deque<Reading> under_way_;
  uint64_t read_bytes_ = 0;

  // What is to be asked for next.
  TileId tile_ = 0;  // behind that of the chunks
  std::vector<aio::TileChunk> chunks_;
  size_t chunk_ = 0;
  uint32_t unit_ = 0, plane_ = 0;
  ElementRun wanted_;  // of the unit
};

class Making {
 public:
  Making(IoEngine& io, const Source& source, const Workload& model, const NewSet& wanted,
         const aio::ScrubProgress& progress)
      : io_(io),
        source_(source),
        model_(model),
        wanted_(wanted),
        progress_(progress),
        map_(model.units, wanted.ranks, wanted.group_ranks) {}

  Status run(const EngineState& counts, uint64_t tile_elements) {
    for (uint32_t rank = 0; rank < wanted_.ranks; ++rank) {
      cuts_.push_back(cut_for(model_, map_, rank));
      shapes_.push_back(shape_of(cuts_.back(), TileMap(cuts_.back().workload, tile_elements), rank, wanted_.ranks));
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
  Moved moved() const { return moved_; }

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
      moved_.written_bytes += bytes.size();
      return ahead.fill(tile, bytes);
    };
    PENSTOCK_TRY(aio::TileStore::create(io_, wanted_.drives[rank], shape, options, fill));
    tiles_made_ += shape.tiles.size();
    moved_.read_bytes += ahead.read_bytes();
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
  const Source& source_;
  const Workload& model_;
  const NewSet& wanted_;
  const aio::ScrubProgress& progress_;
  const ShardMap map_;
  std::vector<RankWorkload> cuts_;  // by rank
  std::vector<StoreShape> shapes_;
  uint64_t tiles_ = 0, tiles_made_ = 0;
  Moved moved_;
};

}  // namespace

Result<Moved> reshard(IoEngine& io, const StoreSet& set, const Workload& model, const NewSet& wanted,
                      const aio::ScrubProgress& progress) {
  CHECK(!set.stores.empty() && wanted.drives.size() == wanted.ranks, wanted.drives.size(), " ranks' drives of ",
        wanted.ranks);
  const uint32_t ranks = set.stores.front()->shape().ranks;
  if (set.stores.size() != ranks) {
    return Status(Code::kUsage, text("store: ", set.stores.size(), " of ", ranks, " ranks' stores are here"),
                  "the folders of all ranks' drives");
  }
  const Source source(set, model);
  PENSTOCK_TRY(source.check());
  PENSTOCK_TRY_ASSIGN(counts, source.counts(model));
  uint64_t tile_elements = 0;
  for (const auto& store : set.stores) tile_elements = std::max(tile_elements, tile_elements_of(*store));
  Making making(io, source, model, wanted, progress);
  PENSTOCK_TRY(making.run(counts, tile_elements));
  return making.moved();
}

}  // namespace penstock::engine
