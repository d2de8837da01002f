// A store opened for a measurement that moves its tiles. Nothing is committed, so the store's state does not change.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aio/host_arena.h"
#include "aio/store/tile_store.h"
#include "runtime/engine/seconds_since.h"

namespace penstock::bench {

class StoreAccess {
 public:
  // REQUIRES: nobody else has the store open, and it has free slots.
  static Result<std::unique_ptr<StoreAccess>> open(const std::vector<std::string>& folders);

  IoEngine& engine() { return *engine_; }
  aio::TileStore& store() { return *store_; }
  uint64_t tiles() const { return store_->shape().tiles.size(); }
  // All of a tile but its weight.
  aio::TileStore::Range state_of(TileId tile) const;
  // Leases of the largest tile's size, no more than stay in a cache.
  BufferPool make_pool() const;

  // Counts the bytes as moved once the transfer has ended, and calls `ended` if it has ended well.
  void follow(Transfer transfer, uint64_t bytes, std::function<void(Lease)> ended);
  bool idle() const { return under_way_ == 0; }
  uint64_t moved_bytes() const { return moved_bytes_; }
  uint64_t moved_or_asked_bytes() const { return moved_bytes_ + asked_bytes_; }
  // Of the first transfer that has not ended well.
  const Status& refusal() const { return refusal_; }

 private:
  StoreAccess() = default;

  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<aio::HostArena> arena_;
  std::unique_ptr<aio::TileStore> store_;
  uint64_t under_way_ = 0, moved_bytes_ = 0, asked_bytes_ = 0;
  Status refusal_;
};

using engine::seconds_since;

}  // namespace penstock::bench
