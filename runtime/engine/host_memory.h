// HostMemory cuts the host arena as the plan lays it out: windows for tiles under way, places for gradients, units
// under way, sums, and the weights and states that rest in host memory. Whoever touches any of it has a lease; but for
// the sums, which are the trainer's side's alone.
//
// Decision thread only; a lease may visit whoever a request hands it to.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/host_arena.h"
#include "tiering/buffer.h"
#include "tiering/plan/plan.h"

namespace penstock::engine {

class HostMemory {
 public:
  // Refuses what the machine cannot give. `plan` outlives it; `most_bytes`: what its arena may grow to.
  static Result<std::unique_ptr<HostMemory>> make(const Plan& plan, uint64_t most_bytes);

  // For a plan that is to take the place of this one. A refusal changes nothing.
  Status grow(uint64_t arena_bytes) { return arena_->grow(arena_bytes); }
  uint64_t most_bytes() const { return arena_->most_bytes(); }
  // The plan has become another: cuts the arena anew, whatever was there. REQUIRES: its arena fits this one, and every
  // lease has ended.
  void lay_out();

  BufferPool& windows() { return *windows_; }
  BufferPool& gradients() { return *gradients_; }
  BufferPool& fetched_gradients() { return *fetched_gradients_; }
  // Places in it are those of moves that fill Area::host_units.
  BufferArea& units() { return *units_; }
  // Of forward passes within steps.
  BufferArea& forward_units() { return *forward_units_; }
  // Places in it are those of moves that fill Area::downloaded_gradients.
  BufferArea& downloaded_gradients() { return *downloaded_; }
  // Those of moves that fill Area::activations, where it is computed in place, and Area::offloaded_activations.
  BufferArea& activations() { return *activations_; }
  BufferArea& offloaded() { return *offloaded_; }
  // The trainer's side adds gradients up there; see SumLayout.
  std::span<std::byte> sums() const { return sums_; }

  bool holds_weight(TileId tile) const { return weight_offsets_[tile] != kNowhere; }
  bool holds_state(TileId tile) const { return state_offsets_[tile] != kNowhere; }
  // REQUIRES: it rests there. `lend`: to write; `share`: to read.
  Lease lend_weight(TileId tile) { return weights_->lend(weight_offsets_[tile], plan_.tiles[tile].weight_bytes); }
  Lease share_weight(TileId tile) { return weights_->share(weight_offsets_[tile], plan_.tiles[tile].weight_bytes); }
  Lease lend_state(TileId tile) { return states_->lend(state_offsets_[tile], plan_.tiles[tile].state_bytes); }
  Lease share_state(TileId tile) { return states_->share(state_offsets_[tile], plan_.tiles[tile].state_bytes); }
  // All weights of a unit, one after another. REQUIRES: all of them rest there.
  Lease share_unit(uint32_t unit);

  std::span<std::byte> bytes() const { return arena_->bytes(); }
  // What a device copies from and to.
  std::vector<std::span<std::byte>> copied() const;
  std::string description() const { return arena_->description(); }

 private:
  static constexpr uint64_t kNowhere = ~uint64_t{0};

  explicit HostMemory(const Plan& plan) : plan_(plan) {}
  std::span<std::byte> run(Region region) const;

  const Plan& plan_;
  std::unique_ptr<aio::HostArena> arena_;
  std::unique_ptr<BufferPool> windows_, gradients_, fetched_gradients_;
  std::unique_ptr<BufferArea> units_, forward_units_, downloaded_, activations_, offloaded_, weights_, states_;
  std::span<std::byte> sums_;
  std::vector<uint64_t> weight_offsets_, state_offsets_;  // by tile
};

}  // namespace penstock::engine
