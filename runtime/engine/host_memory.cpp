#include "runtime/engine/host_memory.h"

#include <algorithm>

namespace penstock::engine {

Result<std::unique_ptr<HostMemory>> HostMemory::make(const Plan& plan, uint64_t most_bytes) {
  auto memory = std::unique_ptr<HostMemory>(new HostMemory(plan));
  PENSTOCK_TRY_ASSIGN(arena,
                      aio::HostArena::make(arena_bytes(plan.budget_lines), aio::PageKind::explicit_huge, most_bytes));
  memory->arena_ = std::move(arena);
  memory->lay_out();
  return memory;
}

std::span<std::byte> HostMemory::run(Region region) const {
  const MemoryRun run = run_of(plan_.budget_lines, region);
  return arena_->bytes().subspan(run.offset_bytes, run.bytes);
}

void HostMemory::lay_out() {
  auto pool = [&](Region region, uint64_t piece_bytes) {
    return std::make_unique<BufferPool>(Tier::host, run(region), std::max(piece_bytes, kAlignmentBytes));
  };
  auto area = [&](Region region, const char* name) {
    return std::make_unique<BufferArea>(Tier::host, name, run(region));
  };
  windows_ = pool(Region::windows, plan_.tiles.slot_bytes_max());
  gradients_ = pool(Region::gradients, plan_.tiles.gradient_bytes_max());
  fetched_gradients_ = pool(Region::fetched_gradients, plan_.tiles.gradient_bytes_max());
  units_ = area(Region::units, "units under way");
  forward_units_ = area(Region::forward_units, "units of forward passes within steps");
  downloaded_ = area(Region::downloaded_gradients, "downloaded gradients");
  activations_ = area(Region::activations, "activations");
  offloaded_ = area(Region::offloaded_activations, "offloaded activations");
  weights_ = area(Region::resting_weights, "resting weights");
  states_ = area(Region::resting_states, "resting states");
  sums_ = run(Region::sums);

  weight_offsets_.assign(plan_.tiles.size(), kNowhere);
  state_offsets_.assign(plan_.tiles.size(), kNowhere);
  uint64_t weight = 0, state = 0;
  for (TileId tile = 0; tile < plan_.tiles.size(); ++tile) {
    if (plan_.placements[tile].weight_in_host()) {
      weight_offsets_[tile] = weight;
      weight += plan_.tiles[tile].weight_bytes;
    }
    if (plan_.placements[tile].state_in_host()) {
      state_offsets_[tile] = state;
      state += plan_.tiles[tile].state_bytes;
    }
  }
}

std::vector<std::span<std::byte>> HostMemory::copied() const {
  std::vector<std::span<std::byte>> all = {units_->memory(), forward_units_->memory(), downloaded_->memory(),
                                           offloaded_->memory(), weights_->memory()};
  const auto on_device = [](const Placement& placement) { return placement.state_on_device(); };
  if (std::ranges::any_of(plan_.placements, on_device)) all.push_back(run(Region::windows));
  return all;
}

Lease HostMemory::share_unit(uint32_t unit) {
  uint64_t bytes = 0;
  for (TileId tile = plan_.tiles.first_of(unit); tile < plan_.tiles.first_of(unit + 1); ++tile) {
    CHECK(holds_weight(tile), "tile ", tile, " of unit ", unit, " does not rest in host memory");
    bytes += plan_.tiles[tile].weight_bytes;
  }
  return weights_->share(weight_offsets_[plan_.tiles.first_of(unit)], bytes);
}

}  // namespace penstock::engine
