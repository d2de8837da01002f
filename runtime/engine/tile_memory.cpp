#include "runtime/engine/tile_memory.h"

#include <algorithm>

namespace penstock::engine {
namespace {

constexpr uint64_t kPage = 2 * kMiB;

struct Resting {
  uint64_t weights = 0, states = 0;
};

Resting resting_bytes(const Plan& plan) {
  Resting bytes;
  for (uint32_t tile = 0; tile < plan.tiles.size(); ++tile) {
    if (plan.placements[tile].weight == Tier::host) bytes.weights += plan.tiles[tile].weight_bytes;
    if (plan.placements[tile].state == Tier::host) bytes.states += plan.tiles[tile].state_bytes;
  }
  return bytes;
}

uint64_t capacity(const Plan& plan, Pool pool) { return plan.pool_capacity[static_cast<size_t>(pool)]; }

}  // namespace

uint64_t TileMemory::arena_bytes(const Plan& plan) {
  Resting resting = resting_bytes(plan);
  // Every run of 2 MiB and more starts on a page.
  uint64_t sum = 0;
  for (uint64_t run : {capacity(plan, Pool::window) * plan.tiles.slot_bytes_max(),
                       capacity(plan, Pool::gradient) * plan.tiles.gradient_bytes_max(),
                       capacity(plan, Pool::returned) * plan.tiles.gradient_bytes_max(), plan.accumulated_bytes,
                       resting.weights, resting.states}) {
    sum += round_up(run, kPage);
  }
  return std::max(sum, kPage);
}

Result<std::unique_ptr<TileMemory>> TileMemory::make(const Plan& plan) {
  auto memory = std::unique_ptr<TileMemory>(new TileMemory);
  PENSTOCK_TRY_ASSIGN(arena, aio::HostArena::make(arena_bytes(plan)));
  memory->arena_ = std::move(arena);
  PENSTOCK_TRY(memory->cut(plan));
  return memory;
}

Status TileMemory::cut(const Plan& plan) {
  PENSTOCK_TRY(cut_pool(plan, Pool::window, plan.tiles.slot_bytes_max(), windows_));
  PENSTOCK_TRY(cut_pool(plan, Pool::gradient, plan.tiles.gradient_bytes_max(), gradients_));
  PENSTOCK_TRY(cut_pool(plan, Pool::returned, plan.tiles.gradient_bytes_max(), returned_));
  if (plan.accumulated_bytes > 0) {
    PENSTOCK_TRY_ASSIGN(run, arena_->take("accumulated gradients", plan.accumulated_bytes));
    accumulators_ = run;
  }
  return cut_resting(plan);
}

Status TileMemory::cut_pool(const Plan& plan, Pool pool, uint64_t piece_bytes, std::unique_ptr<BufferPool>& out) {
  uint64_t pieces = piece_bytes == 0 ? 0 : capacity(plan, pool);
  uint64_t piece = std::max(piece_bytes, kSegmentAlignmentBytes);
  std::span<std::byte> run;
  if (pieces > 0) {
    PENSTOCK_TRY_ASSIGN(taken, arena_->take(name_of(pool), pieces * piece));
    run = taken;
  }
  out = std::make_unique<BufferPool>(Tier::host, run, piece);
  return Status();
}

Status TileMemory::cut_resting(const Plan& plan) {
  weights_.assign(plan.tiles.size(), nullptr);
  states_.assign(plan.tiles.size(), nullptr);
  Resting bytes = resting_bytes(plan);
  std::byte *weight = nullptr, *state = nullptr;
  if (bytes.weights > 0) {
    PENSTOCK_TRY_ASSIGN(run, arena_->take("resting weights", bytes.weights));
    weight = run.data();
  }
  if (bytes.states > 0) {
    PENSTOCK_TRY_ASSIGN(run, arena_->take("resting state", bytes.states));
    state = run.data();
  }
  for (uint32_t tile = 0; tile < plan.tiles.size(); ++tile) {
    if (plan.placements[tile].weight == Tier::host) {
      weights_[tile] = weight;
      weight += plan.tiles[tile].weight_bytes;
    }
    if (plan.placements[tile].state == Tier::host) {
      states_[tile] = state;
      state += plan.tiles[tile].state_bytes;
    }
  }
  return Status();
}

}  // namespace penstock::engine
