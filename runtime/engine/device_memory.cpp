#include "runtime/engine/device_memory.h"

#include <utility>

#include "tiering/plan/pass_bytes.h"

namespace penstock::engine {

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::open(const MakeDevice& make, const Plan& plan,
                                                         const HostMemory& host) {
  PENSTOCK_TRY_ASSIGN(device, make(arena_bytes(plan.budget_lines, Tier::device)));
  auto memory = std::unique_ptr<DeviceMemory>(new DeviceMemory(plan, std::move(device)));
  memory->registration_ = memory->device_->register_host_memory(host.bytes(), host.copied()).explanation;
  return memory;
}

std::span<std::byte> DeviceMemory::at(Area area, uint64_t offset_bytes, uint64_t bytes) const {
  const bool is_there = area == Area::device_units || area == Area::device_gradients || area == Area::activations;
  CHECK(is_there, name_of(area), " is not of the device's arena");
  const Region region = area == Area::device_units       ? Region::device_units
                        : area == Area::device_gradients ? Region::device_gradients
                                                         : Region::device_activations;
  return part_of(region, name_of(area), offset_bytes, bytes);
}

std::span<std::byte> DeviceMemory::part_of(Region region, const char* name, uint64_t offset_bytes,
                                           uint64_t bytes) const {
  const MemoryRun run = run_of(plan_.budget_lines, region);
  CHECK(offset_bytes <= run.bytes && bytes <= run.bytes - offset_bytes, bytes, " B from ", offset_bytes, " of ", name,
        ", which has ", run.bytes);
  return device_->memory().subspan(run.offset_bytes + offset_bytes, bytes);
}

Lease DeviceMemory::lend(std::span<std::byte> bytes) {
  return arena_.lend(static_cast<uint64_t>(bytes.data() - arena_.memory().data()), bytes.size());
}

Lease DeviceMemory::share(std::span<std::byte> bytes) {
  return arena_.share(static_cast<uint64_t>(bytes.data() - arena_.memory().data()), bytes.size());
}

std::span<std::byte> DeviceMemory::forward_units() const {
  const MemoryRun run = run_of(plan_.budget_lines, Region::device_forward_units);
  return device_->memory().subspan(run.offset_bytes, run.bytes);
}

// -- what rests there -------------------------------------------------------------------------------------------------

void DeviceMemory::lay_out() {
  const TileMap& tiles = plan_.tiles;
  weight_offsets_.assign(tiles.size(), 0);
  state_offsets_.assign(tiles.size(), 0);
  gradient_offsets_.clear();
  uint64_t weight = 0, state = 0, gradient = 0;
  for (TileId tile = 0; tile < tiles.size(); ++tile) {
    if (tiles[tile].first_element == 0) {
      gradient_offsets_.push_back(gradient);
      if (holds_state(tile)) gradient += resting_gradient_bytes(tiles, tiles[tile].unit);
    }
    weight_offsets_[tile] = weight;
    state_offsets_[tile] = state;
    if (holds_weight(tile)) weight += tiles[tile].weight_bytes;
    if (holds_state(tile)) state += tiles[tile].state_bytes;
  }
}

std::span<std::byte> DeviceMemory::resting(Region region, uint64_t offset_bytes, uint64_t bytes) const {
  return part_of(region, "what rests on the device", offset_bytes, bytes);
}

std::span<std::byte> DeviceMemory::weights_of(uint32_t unit) const {
  const TileId first = plan_.tiles.first_of(unit);
  CHECK(holds_weight(first), "unit ", unit, " does not rest on the device");
  return resting(Region::device_resting_weights, weight_offsets_[first], plan_.tiles.weight_bytes(unit));
}

std::span<std::byte> DeviceMemory::weight_of(TileId tile) const {
  return resting(Region::device_resting_weights, weight_offsets_[tile], plan_.tiles[tile].weight_bytes);
}

std::span<std::byte> DeviceMemory::state_of(TileId tile) const {
  return resting(Region::device_resting_states, state_offsets_[tile], plan_.tiles[tile].state_bytes);
}

std::span<std::byte> DeviceMemory::gradient_of(uint32_t unit) const {
  return resting(Region::device_resting_gradients, gradient_offsets_[unit], plan_.tiles.gradient_bytes(unit));
}

std::span<std::byte> DeviceMemory::squares_of(uint32_t unit) const {
  const uint64_t gradient = plan_.tiles.gradient_bytes(unit), all = resting_gradient_bytes(plan_.tiles, unit);
  return resting(Region::device_resting_gradients, gradient_offsets_[unit] + gradient, all - gradient);
}

std::vector<CopyRun> DeviceMemory::runs_of(TileId tile, Way way) const {
  std::vector<CopyRun> runs;
  uint64_t at = 0;
  auto add = [&](std::span<const std::byte> part) {
    const auto offset = static_cast<uint64_t>(part.data() - device_->memory().data());
    runs.push_back(way == Way::in ? CopyRun{at, offset, part.size()} : CopyRun{offset, at, part.size()});
    at += part.size();
  };
  add(weight_of(tile));
  if (holds_state(tile)) add(state_of(tile));
  return runs;
}

Status DeviceMemory::carry(TileId tile, Way way, std::span<std::byte> bytes) {
  Buffer host = Buffer::borrowed(Tier::host, bytes);
  const Lease weight = lend(weight_of(tile)), state = holds_state(tile) ? lend(state_of(tile)) : Lease();
  const std::vector<CopyRun> runs = runs_of(tile, way);
  Copy copy = way == Way::in ? device_->copy(runs, host.lend(), lend_all(), {})
                             : device_->copy(runs, lend_all(), host.lend(), {});
  return std::move(copy.transfer).wait().status().within(text("copy of tile ", tile, ", which rests on the device"));
}

std::string DeviceMemory::description() const {
  return registration_.empty() ? device_->description() : device_->description() + "; " + registration_;
}

}  // namespace penstock::engine
