// TileMemory cuts the host arena into what a plan needs: windows for tiles under way, places for gradients, and the
// weights and states that rest in host memory.
//
// Decision thread only; the bytes are touched by whoever a request hands them to.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "aio/host_arena.h"
#include "tiering/buffer.h"
#include "tiering/plan/plan.h"

namespace penstock::engine {

class TileMemory {
 public:
  // Refuses what the machine cannot give.
  static Result<std::unique_ptr<TileMemory>> make(const Plan& plan);
  // The bytes of the arena that make() takes: what the plan counts, rounded up to whole pages.
  static uint64_t arena_bytes(const Plan& plan);

  BufferPool& windows() { return *windows_; }
  BufferPool& gradients() { return *gradients_; }
  BufferPool& returned() { return *returned_; }
  std::span<std::byte> accumulators() const { return accumulators_; }

  // Where a tile's weight and state rest; null where they do not rest in host memory.
  std::byte* resting_weight(uint32_t tile) const { return weights_[tile]; }
  std::byte* resting_state(uint32_t tile) const { return states_[tile]; }

  std::span<std::byte> bytes() const { return arena_->bytes(); }
  uint64_t offset_of(const std::byte* place) const { return static_cast<uint64_t>(place - arena_->bytes().data()); }
  std::string description() const { return arena_->description(); }

 private:
  TileMemory() = default;
  Status cut(const Plan& plan);
  Status cut_pool(const Plan& plan, Pool pool, uint64_t piece_bytes, std::unique_ptr<BufferPool>& out);
  Status cut_resting(const Plan& plan);

  std::unique_ptr<aio::HostArena> arena_;
  std::unique_ptr<BufferPool> windows_, gradients_, returned_;
  std::span<std::byte> accumulators_;
  std::vector<std::byte*> weights_, states_;
};

}  // namespace penstock::engine
