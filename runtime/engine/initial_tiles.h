// InitialTiles fills the tiles of a new store from fp32 masters, plane by plane, in bounded memory.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "aio/store/tile_store.h"
#include "tiering/store/store_shape.h"
#include "tiering/unit.h"

namespace penstock::engine {

// The fp32 master of a unit's elements [first, first + values.size()): where training begins. A refusal is that of
// whoever makes the store.
using InitialValues = std::function<Status(uint32_t unit, uint64_t first, std::span<float> values)>;

class InitialTiles {
 public:
  // `shape`: of the workload; both outlive it.
  InitialTiles(const Workload& workload, const StoreShape& shape, InitialValues initial)
      : workload_(workload), shape_(shape), masters_(shape, std::move(initial)), coding_(shape, masters_) {}
  InitialTiles(const InitialTiles&) = delete;
  InitialTiles& operator=(const InitialTiles&) = delete;

  // As aio::FillTile.
  Status fill(TileId tile, uint32_t plane, uint64_t first_byte, std::span<std::byte> bytes);

 private:
  // The fp32 values of runs of tiles' elements. Planes that hold parts of the same masters ask one after the other.
  class Masters {
   public:
    Masters(const StoreShape& shape, InitialValues initial) : shape_(shape), initial_(std::move(initial)) {}

    // At most `count` of them; behind the tile's last element there are none.
    Result<std::span<const float>> of(TileId id, uint64_t first, uint64_t count);

   private:
    const StoreShape& shape_;
    const InitialValues initial_;
    TileId id_ = 0;
    uint64_t first_ = 0;
    std::vector<float> values_;  // none at first: then the first run is none that is here
  };

  // Codes of frozen weights and their scales. A block is quantised once: the plane of codes comes first, and the scales
  // that are made with it wait for their own.
  class Coding {
   public:
    Coding(const StoreShape& shape, Masters& masters) : shape_(shape), masters_(masters) {}

    // As aio::FillTile.
    Status fill(BlockCode code, const Plane& plane, TileId tile, uint64_t first_byte, std::span<std::byte> bytes);

   private:
    Status fill_codes(BlockCode code, const Plane& plane, TileId tile, uint64_t first_byte, std::span<std::byte> bytes);

    const StoreShape& shape_;
    Masters& masters_;
    TileId tile_ = 0;
    std::vector<float> scales_;  // of that tile
  };

  const Workload& workload_;
  const StoreShape& shape_;
  Masters masters_;
  Coding coding_;
};

}  // namespace penstock::engine
