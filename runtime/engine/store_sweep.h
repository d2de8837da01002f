// StoreSweep goes through tiles of a store outside of steps: reads them into windows, some ahead, hands them on in the
// order of the visits, and writes them back where asked to. Blocks the decision thread until all is done.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "aio/store/tile_store.h"
#include "aio/windowed_io.h"
#include "runtime/engine/drive_bytes.h"
#include "tiering/buffer.h"

namespace penstock::engine {

class StoreSweep {
 public:
  struct Visit {
    TileId tile = 0;
    aio::TileStore::Range range;  // what is read of the tile; of no length: nothing
  };
  // `bytes`: a whole tile's place, where `range` has been read and compared with its checksums.
  using OnTile = std::function<Status(TileId tile, std::byte* bytes)>;
  enum class Then { forget, write };

  // REQUIRES: nothing else is under way, and a window is free.
  StoreSweep(IoEngine& io, aio::TileStore& store, BufferPool& windows) : io_(io), store_(store), windows_(windows) {}

  // REQUIRES: called once.
  Status run(std::span<const Visit> visits, const OnTile& on_tile, Then then);
  DriveBytes drive_bytes() const { return drive_bytes_; }

 private:
  struct Arriving {
    Visit visit;
    std::optional<aio::TileStore::Reading> reading;  // nothing where nothing is read
    std::optional<Result<Lease>> window;             // once it has ended
  };

  Status begin(const Visit& visit, Lease window);
  // Of those that have arrived, the ones whose turn it is. All of them are ended, whatever one of them returns.
  Status hand_on_arrived();
  Status end(Arriving arrived);
  Status write(TileId tile, Lease window);

  IoEngine& io_;
  aio::TileStore& store_;
  BufferPool& windows_;
  OnTile on_tile_;
  Then then_ = Then::forget;
  aio::WindowedIo* windowed_ = nullptr;  // while run() runs
  std::deque<Arriving> arriving_;        // in the order of the visits
  DriveBytes drive_bytes_;
};

}  // namespace penstock::engine
