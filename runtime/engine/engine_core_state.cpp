// What EngineCore reads, writes and makes durable of the state between steps.
#include <algorithm>
#include <cstring>

#include "runtime/engine/coded_weights.h"
#include "runtime/engine/engine_core.h"
#include "runtime/engine/rank_side.h"

namespace penstock::engine {

Status EngineCore::load_resting(Resting which) {
  std::vector<StoreSweep::Visit> visits;
  for (TileId tile = 0; tile < plan_->tiles.size(); ++tile) {
    const Placement& placement = plan_->placements[tile];
    if (placement.weight_on_drives()) continue;
    const bool may_have_changed = placement.weight_in_host() && !placement.state_in_host();
    if (which == Resting::weights_without_state && !may_have_changed) continue;
    aio::TileStore::Range range = store_->whole(tile);
    if (!placement.is_updated_in_place()) range.length_bytes = plan_->tiles[tile].weight_bytes;
    visits.push_back({tile, range});
  }
  return sweep(visits, StoreSweep::Then::forget,
               [this](TileId tile, std::byte* bytes) { return scatter_resting(tile, bytes); });
}

Status EngineCore::commit_resting(RootPayload payload) {
  std::vector<StoreSweep::Visit> visits;
  for (TileId tile = 0; tile < plan_->tiles.size(); ++tile) {
    if (plan_->placements[tile].is_updated_in_place()) visits.push_back({tile, {}});
  }
  PENSTOCK_TRY(sweep(visits, StoreSweep::Then::write,
                     [this](TileId tile, std::byte* bytes) { return gather_resting(tile, bytes); }));
  return commit(std::move(payload));
}

Status EngineCore::scatter_resting(TileId tile, std::byte* bytes) {
  const Tile& shape = plan_->tiles[tile];
  if (plan_->placements[tile].weight_on_device())
    return device_->carry(tile, DeviceMemory::Way::in, whole(tile, bytes));
  if (memory_->holds_weight(tile)) std::memcpy(memory_->lend_weight(tile).data(), bytes, shape.weight_bytes);
  if (memory_->holds_state(tile)) {
    std::memcpy(memory_->lend_state(tile).data(), bytes + shape.weight_bytes, shape.state_bytes);
  }
  return Status();
}

Status EngineCore::gather_resting(TileId tile, std::byte* bytes) const {
  const Tile& shape = plan_->tiles[tile];
  if (plan_->placements[tile].weight_on_device())
    return device_->carry(tile, DeviceMemory::Way::out, whole(tile, bytes));
  if (memory_->holds_weight(tile)) std::memcpy(bytes, memory_->share_weight(tile).data(), shape.weight_bytes);
  if (memory_->holds_state(tile)) {
    std::memcpy(bytes + shape.weight_bytes, memory_->share_state(tile).data(), shape.state_bytes);
  }
  return Status();
}

Result<std::vector<EngineCore::PlaneRun>> EngineCore::runs_of(const char* verb, uint32_t unit, Role role,
                                                              uint64_t first, uint64_t length_bytes) const {
  std::vector<PlaneRun> runs;
  for (TileId tile = plan_->tiles.first_of(unit); tile < plan_->tiles.first_of(unit + 1); ++tile) {
    const Tile& shape = plan_->tiles[tile];
    const TileLayout layout = store_->shape().layout(tile);
    const TileLayout::Place* place = layout.find(role);
    if (place == nullptr) return Status(Code::kUsage, text(verb, ": the state has no ", name_of(role)));
    const uint64_t size = bytes_of(place->plane.dtype);
    const uint64_t begin = place->plane.values(shape.first_element);  // tiles begin with whole blocks
    const uint64_t from = std::max(first, begin);
    const uint64_t to = std::min(first + length_bytes / size, begin + place->plane.values(shape.elements));
    if (from >= to) continue;
    const bool is_weight = place->offset_bytes < shape.weight_bytes;
    runs.push_back({.tile = tile,
                    .plane = {place->offset_bytes, round_up(place->length_bytes, kAlignmentBytes)},
                    .tile_offset_bytes = place->offset_bytes + (from - begin) * size,
                    .values_offset_bytes = (from - first) * size,
                    .length_bytes = (to - from) * size,
                    .rests_in_memory = !plan_->placements[tile].weight_on_drives() &&
                                       (is_weight || plan_->placements[tile].is_updated_in_place())});
  }
  return runs;
}

Status EngineCore::read_plane(uint32_t unit, Role role, uint64_t first, std::span<std::byte> values) {
  if (role == Role::weight && options_.request.workload.units[unit].code) return read_dequantised(unit, first, values);
  PENSTOCK_TRY_ASSIGN(runs, runs_of("read", unit, role, first, values.size()));
  std::vector<StoreSweep::Visit> visits;
  for (const PlaneRun& run : runs)
    visits.push_back({run.tile, run.rests_in_memory ? aio::TileStore::Range{} : run.plane});
  auto run = runs.begin();  // of the tile that is visited
  return sweep(visits, StoreSweep::Then::forget, [&](TileId tile, std::byte* bytes) {
    if (run->rests_in_memory) PENSTOCK_TRY(gather_resting(tile, bytes));
    std::memcpy(values.data() + run->values_offset_bytes, bytes + run->tile_offset_bytes, run->length_bytes);
    ++run;
    return Status();
  });
}

Status EngineCore::read_dequantised(uint32_t unit, uint64_t first, std::span<std::byte> values) {
  const CodedUnit coded(options_.request.workload, plan_->tiles, unit);
  const uint64_t end = first + values.size() / coded.weight_size();
  std::vector<StoreSweep::Visit> visits;
  for (TileId tile = plan_->tiles.first_of(unit); tile < plan_->tiles.first_of(unit + 1); ++tile) {
    const Tile& shape = plan_->tiles[tile];
    if (shape.first_element >= end || shape.first_element + shape.elements <= first) continue;
    visits.push_back({tile, memory_->holds_weight(tile) ? aio::TileStore::Range{} : store_->whole(tile)});
  }
  return sweep(visits, StoreSweep::Then::forget, [&](TileId tile, std::byte* bytes) {
    PENSTOCK_TRY(gather_resting(tile, bytes));
    const uint64_t from = std::max(first, plan_->tiles[tile].first_element);
    coded.dequantise(coded.codes_of(tile, bytes), from, end, values.data() + (from - first) * coded.weight_size());
    return Status();
  });
}

Status EngineCore::write_plane(uint32_t unit, Role role, uint64_t first, std::span<const std::byte> values) {
  PENSTOCK_TRY_ASSIGN(runs, runs_of("write", unit, role, first, values.size()));
  std::vector<StoreSweep::Visit> visits;
  for (const PlaneRun& run : runs) {
    const bool is_here = plan_->placements[run.tile].is_updated_in_place();
    visits.push_back({run.tile, is_here ? aio::TileStore::Range{} : store_->whole(run.tile)});
  }
  auto run = runs.begin();
  return sweep(visits, StoreSweep::Then::write, [&](TileId tile, std::byte* bytes) {
    PENSTOCK_TRY(gather_resting(tile, bytes));
    std::memcpy(bytes + run->tile_offset_bytes, values.data() + run->values_offset_bytes, run->length_bytes);
    PENSTOCK_TRY(scatter_resting(tile, bytes));
    ++run;
    return Status();
  });
}

Status EngineCore::sweep(std::span<const StoreSweep::Visit> visits, StoreSweep::Then then,
                         const StoreSweep::OnTile& on_tile) {
  StoreSweep sweep(*drives_.io, *store_, memory_->windows());
  const Status status = sweep.run(visits, on_tile, then);
  outside_steps_ = outside_steps_ + sweep.drive_bytes();
  return status;
}

Status EngineCore::commit(RootPayload payload) {
  std::optional<Status> verdict;
  store_->commit(std::move(payload), [&](Status status) { verdict = status; });
  while (!verdict) {
    const size_t ended = drives_.io->wait(std::chrono::milliseconds(options_.has_other_ranks() ? 1 : 100));
    if (ended == 0 && options_.has_other_ranks()) options_.ranks->poll(std::chrono::milliseconds(1));
  }
  if (verdict->ok() && options_.on_durable) options_.on_durable(store_->payload().step);
  return *verdict;
}

}  // namespace penstock::engine
