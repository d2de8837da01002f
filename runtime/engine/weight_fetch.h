// A unit's weights from the drives to where they are computed with: read_unit(), and check_unit() behind it.
#pragma once

#include <functional>
#include <vector>

#include "aio/store/tile_store.h"
#include "cpu_optim/update_workers.h"
#include "tiering/buffer.h"
#include "tiering/io_engine.h"
#include "tiering/tile_map.h"

namespace penstock::engine {

struct WeightSource {
  const TileMap& tiles;
  aio::TileStore& store;
  IoEngine& io;
};

// The weights of one tile, as they have come: nobody has compared their checksums, and the slot that they come from is
// not written before end_reads().
struct ArrivedWeights {
  aio::TileStore::Reading reading;
  aio::TileStore::Range range;
  const std::byte* bytes = nullptr;
};
using ArrivedUnit = std::vector<ArrivedWeights>;

// Reads the unit's weights, tile after tile, into `area` from `offset_bytes` on; `then` hears once every read has
// ended. Returns the bytes that it reads. REQUIRES: none of its tiles is being written.
uint64_t read_unit(const WeightSource& source, uint32_t unit, BufferArea& area, uint64_t offset_bytes,
                   uint64_t deadline, std::function<void(Result<ArrivedUnit>)> then);

void end_reads(aio::TileStore& store, const ArrivedUnit& unit);

// From a worker: has a function run on the thread that asked for the work.
using Post = std::function<void(std::function<void()>)>;

// Has the workers compare the checksums, and ends the reads; `then` hears of it through `post`. REQUIRES: until then
// the bytes stay where they are.
void check_unit(aio::TileStore& store, cpu_optim::UpdateWorkers& workers, ArrivedUnit unit, Post post,
                std::function<void(Status)> then);

}  // namespace penstock::engine
