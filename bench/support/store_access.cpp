#include "bench/support/store_access.h"

#include <algorithm>

#include "aio/direct_folder.h"
#include "aio/make_io_engine.h"
#include "cpu_optim/checksum.h"

namespace penstock::bench {
namespace {

constexpr uint64_t kMemoryBytes = 16 * kMiB;  // for each drive; more would be cold

}  // namespace

Result<std::unique_ptr<StoreAccess>> StoreAccess::open(const std::vector<std::string>& folders) {
  auto access = std::unique_ptr<StoreAccess>(new StoreAccess());
  PENSTOCK_TRY_ASSIGN(made, aio::make_io_engine());
  PENSTOCK_TRY_ASSIGN(arena, aio::HostArena::make(kMemoryBytes * folders.size()));
  access->engine_ = std::move(made.engine);
  access->arena_ = std::move(arena);
  access->engine_->register_memory(access->arena_->bytes());
  const auto drives = aio::direct_folders(folders);
  aio::OpenOptions options;
  options.checksum = cpu_optim::checksum_function();
  PENSTOCK_TRY_ASSIGN(store, aio::TileStore::open(*access->engine_, drives, options));
  access->store_ = std::move(store);
  return access;
}

aio::TileStore::Range StoreAccess::state_of(TileId tile) const {
  const uint64_t offset_bytes = store_->shape().layout(tile).places.at(1).offset_bytes;
  return {offset_bytes, store_->layout().tile_bytes(tile) - offset_bytes};
}

BufferPool StoreAccess::make_pool() const {
  uint64_t most = 0;
  for (TileId tile = 0; tile < tiles(); ++tile) most = std::max(most, store_->layout().tile_bytes(tile));
  return BufferPool(Tier::host, arena_->bytes(), most);
}

void StoreAccess::follow(Transfer transfer, uint64_t bytes, std::function<void(Lease)> ended) {
  ++under_way_;
  asked_bytes_ += bytes;
  std::move(transfer).then([this, bytes, ended = std::move(ended)](Result<Lease> back) {
    --under_way_;
    asked_bytes_ -= bytes;
    moved_bytes_ += bytes;
    if (back.ok()) {
      ended(std::move(*back));
    } else if (refusal_.ok()) {
      refusal_ = back.status();
    }
  });
}

}  // namespace penstock::bench
