// StorePass goes through tiles of a store outside of steps: reads them into windows, some ahead, hands them on in
// order, and writes them back where asked to. Blocks the decision thread until all is done.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "aio/store/tile_store.h"
#include "runtime/engine/moved.h"
#include "tiering/buffer.h"
#include "tiering/transfer.h"

namespace penstock::engine {

class StorePass {
 public:
  struct Visit {
    uint32_t tile = 0;
    aio::TileStore::Range range;  // what is read of the tile; of no length: nothing
  };
  // `bytes`: a whole tile's place, where `range` has been read and compared with its checksums.
  using Use = std::function<Status(uint32_t tile, std::byte* bytes)>;
  enum class Then { forget, write };

  // REQUIRES: nothing else is under way, and a window is free.
  StorePass(IoEngine& io, aio::TileStore& store, BufferPool& windows) : io_(io), store_(store), windows_(windows) {}

  Status run(std::span<const Visit> visits, const Use& use, Then then);
  Moved moved() const { return moved_; }

 private:
  struct Arriving {
    Visit visit;
    std::optional<aio::TileStore::Reading> reading;
    std::optional<Transfer> transfer;
    Lease window = {};  // where nothing is read
  };
  struct Leaving {
    TileSlot place;
    std::vector<uint64_t> checksums;
    Transfer transfer;
  };

  Status go(std::span<const Visit> visits, const Use& use, Then then);
  Status begin_read(const Visit& visit, Lease window);
  Result<Lease> end_read(Arriving arriving);
  Status begin_write(uint32_t tile, Lease window);
  Status end_oldest_write();

  IoEngine& io_;
  aio::TileStore& store_;
  BufferPool& windows_;
  std::deque<Arriving> arriving_;
  std::deque<Leaving> leaving_;
  Moved moved_;
};

}  // namespace penstock::engine
