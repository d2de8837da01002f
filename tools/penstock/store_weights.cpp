#include "tools/penstock/store_weights.h"

#include <algorithm>
#include <cstring>

#include "cpu_optim/block_codes.h"
#include "runtime/engine/ranks/shard_map.h"
#include "runtime/engine/ranks/stored_model.h"
#include "runtime/engine/store_sweep.h"
#include "runtime/trainer/engine_link.h"
#include "runtime/trainer/training_settings.h"
#include "tiering/arithmetic/convert.h"

namespace penstock::tools {
namespace {

template <typename Word>
Word word(const std::byte* at, size_t index) {
  Word value;
  std::memcpy(&value, at + index * sizeof(Word), sizeof(Word));
  return value;
}

void put_float(float value, size_t index, std::byte* target) {
  std::memcpy(target + index * sizeof value, &value, sizeof value);
}

bool is_alike(const StoreShape::Unit& there, const trainer::ModelUnit& here) {
  return std::equal(there.parameters.begin(), there.parameters.end(), here.parameters.begin(), here.parameters.end(),
                    [](const auto& a, const auto& b) {
                      return a.name == b.name && a.first_element == b.first_element && a.elements == b.elements;
                    });
}

// The planes that lie first.
aio::TileStore::Range range_of(const TileLayout& layout, StoreWeights::Planes planes) {
  uint64_t end = 0;
  for (const TileLayout::Place& place : layout.places) {
    const Role role = place.plane.role;
    const bool is_master = role == Role::master || role == Role::master_low;
    const bool wanted = role == Role::weight || role == Role::weight_scale ||
                        (planes == StoreWeights::Planes::weights_and_masters && is_master);
    if (wanted) end = place.offset_bytes + round_up(place.length_bytes, kAlignmentBytes);
  }
  return {0, end};
}

}  // namespace

void TileValues::weights(Dtype dtype, std::byte* target) const {
  const TileLayout::Place& place = *layout_.find(Role::weight);
  const std::byte* at = bytes_ + place.offset_bytes;
  if (const TileLayout::Place* scales = layout_.find(Role::weight_scale)) {
    const BlockCode code = place.plane.dtype == Dtype::int8 ? BlockCode::int8 : BlockCode::nf4;
    const auto* of_blocks = reinterpret_cast<const float*>(bytes_ + scales->offset_bytes);
    return cpu_optim::dequantise({code, at, of_blocks}, 0, elements_, dtype, target);
  }
  if (place.plane.dtype == dtype) {
    std::memcpy(target, at, elements_ * bytes_of(dtype));
    return;
  }
  CHECK(dtype == Dtype::fp32, "weights of ", name_of(place.plane.dtype), " as ", name_of(dtype));
  const bool is_bf16 = place.plane.dtype == Dtype::bf16;
  for (size_t i = 0; i < elements_; ++i) {
    const auto half = word<uint16_t>(at, i);
    put_float(is_bf16 ? arithmetic::float_of_bf16(half) : arithmetic::float_of_fp16(half), i, target);
  }
}

void TileValues::masters(std::span<float> into) const {
  const TileLayout::Place* low = layout_.find(Role::master_low);
  const TileLayout::Place* full = layout_.find(Role::master);
  if (full != nullptr) {
    std::memcpy(into.data(), bytes_ + full->offset_bytes, into.size_bytes());
  } else if (low != nullptr) {
    const TileLayout::Place& high = *layout_.find(Role::weight);
    for (size_t i = 0; i < into.size(); ++i) {
      into[i] = arithmetic::join(
          {word<uint16_t>(bytes_ + high.offset_bytes, i), word<uint16_t>(bytes_ + low->offset_bytes, i)});
    }
  } else {
    weights(Dtype::fp32, std::as_writable_bytes(into).data());
  }
}

Result<StoreWeights::Part> StoreWeights::part_of(const InspectedStores& stores, uint32_t rank,
                                                 const trainer::Model& model, std::span<const uint64_t> first,
                                                 std::span<const uint64_t> elements) {
  aio::TileStore& store = *stores.ranks()[rank];
  const auto refused = Status(Code::kCorrupt, "store: its parameters are not those of the model that its root names",
                              "`penstock checkpoint scrub` says whether it is damaged");
  const StoreShape& shape = store.shape();
  const bool is_one_of_several = shape.ranks > 1;
  Part part{.store = &store, .never_updated = &stores.never_updated(rank)};
  std::vector<std::vector<TileId>> tiles(shape.units.size());
  std::vector<uint64_t> there(shape.units.size());
  for (TileId tile = 0; tile < shape.tiles.size(); ++tile) {
    tiles[shape.tiles[tile].unit].push_back(tile);
    there[shape.tiles[tile].unit] += shape.tiles[tile].elements;
  }
  for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
    part.tiles.emplace_back();
    if (elements[unit] == 0) continue;
    const size_t here = part.places.size();
    if (here >= shape.units.size()) return refused;
    if (!is_one_of_several && !is_alike(shape.units[here], model.units[unit])) return refused;
    if (shape.units[here].name != model.units[unit].name || there[here] != elements[unit]) return refused;
    part.places.push_back({unit, first[unit]});
    part.tiles.back() = tiles[here];
  }
  if (shape.units.size() > part.places.size() + (is_one_of_several ? 1 : 0)) return refused;
  return part;
}

Result<std::unique_ptr<StoreWeights>> StoreWeights::find(InspectedStores& stores, const trainer::TrainConfig& config,
                                                         const trainer::Model& model) {
  const aio::TileStore& first_store = *stores.ranks().front();
  const uint32_t ranks = first_store.shape().ranks;
  PENSTOCK_TRY(stores.expect_all_ranks());
  std::unique_ptr<StoreWeights> found(new StoreWeights(stores.engine()));
  const engine::ShardMap map(trainer::units_of(model), ranks, trainer::group_ranks_of(config, ranks));
  // One group has all of the model.
  for (uint32_t rank = 0; rank < map.group_ranks(); ++rank) {
    std::vector<uint64_t> first, elements;
    for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
      const engine::ElementRun shard = map.shard(unit, rank);
      first.push_back(shard.begin);
      elements.push_back(shard.elements());
    }
    const aio::TileStore& store = *stores.ranks()[rank];
    PENSTOCK_TRY_ASSIGN(part, part_of(stores, rank, model, first, elements));
    if (store.payload().step != first_store.payload().step)
      return engine::another_step(rank, store.payload().step, first_store.payload().step);
    found->parts_.push_back(std::move(part));
  }
  PENSTOCK_TRY(found->take_memory());
  return found;
}

Status StoreWeights::take_memory() {
  constexpr uint64_t kWindows = 4;  // some are read while one is used
  uint64_t tile_bytes = kAlignmentBytes;
  for (const Part& part : parts_) {
    const StoreShape& shape = part.store->shape();
    for (TileId tile = 0; tile < shape.tiles.size(); ++tile)
      tile_bytes = std::max(tile_bytes, shape.layout(tile).size_bytes);
  }
  PENSTOCK_TRY_ASSIGN(arena, aio::HostArena::make(kWindows * tile_bytes));
  PENSTOCK_TRY_ASSIGN(memory, arena->take("tiles to read", kWindows * tile_bytes));
  arena_ = std::move(arena);
  windows_ = std::make_unique<BufferPool>(Tier::host, memory, tile_bytes);
  return Status();
}

uint64_t StoreWeights::tiles(std::span<const uint32_t> units) const {
  uint64_t count = 0;
  for (const Part& part : parts_)
    for (uint32_t unit : units) count += part.tiles[unit].size();
  return count;
}

Result<uint64_t> StoreWeights::read(std::span<const uint32_t> units, Planes planes, const OnTile& on_tile) {
  uint64_t read_bytes = 0;
  for (const Part& part : parts_) {
    const StoreShape& shape = part.store->shape();
    std::vector<engine::StoreSweep::Visit> visits;
    for (uint32_t unit : units)
      for (TileId tile : part.tiles[unit]) visits.push_back({tile, range_of(shape.layout(tile), planes)});
    const auto visit = [&](TileId id, std::byte* bytes) {
      const StoreShape::Tile& tile = shape.tiles[id];
      const Part::Place& place = part.places[tile.unit];
      return on_tile(place.unit, place.first_element + tile.first_element,
                     TileValues(shape.layout(id), tile.elements, bytes));
    };
    const auto store_of = [&](TileId tile) { return shape.kind(tile).updated ? part.store : part.never_updated; };
    for (auto first = visits.begin(), end = first; first != visits.end(); first = end) {
      aio::TileStore* const store = store_of(first->tile);
      end = std::find_if(first, visits.end(), [&](const auto& other) { return store_of(other.tile) != store; });
      engine::StoreSweep sweep(io_, *store, *windows_);
      PENSTOCK_TRY(sweep.run({first, end}, visit, engine::StoreSweep::Then::forget));
      read_bytes += sweep.drive_bytes().read_bytes;
    }
  }
  return read_bytes;
}

}  // namespace penstock::tools
