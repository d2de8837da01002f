// read_unit(): a unit's weights from the drives to where they are computed with.
#pragma once

#include <functional>

#include "aio/store/tile_store.h"
#include "cpu_optim/update_workers.h"
#include "runtime/engine/mailbox.h"
#include "tiering/buffer.h"
#include "tiering/io_engine.h"
#include "tiering/tile_map.h"

namespace penstock::engine {

struct WeightSource {
  const TileMap& tiles;
  aio::TileStore& store;
  IoEngine& io;
  cpu_optim::UpdateWorkers& workers;
  Post post;
};

// Reads the unit's weights, tile after tile, into `area` from `offset_bytes` on, and has the workers compare the
// checksums of each tile that has come; `then` hears once all of them have been compared, on the thread that calls
// this. `is_there`: of what tiles nothing is read. Returns the bytes that it reads. REQUIRES: none of the others is
// being written.
uint64_t read_unit(const WeightSource& source, uint32_t unit, BufferArea& area, uint64_t offset_bytes,
                   uint64_t deadline, std::function<void(Status)> then,
                   const std::function<bool(TileId)>& is_there = {});

}  // namespace penstock::engine
