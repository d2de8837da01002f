// ReadAhead fills the tiles of a new rank's store from the stores of others, several reads ahead of creation, and
// compares every block with its checksum.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "aio/store/tile_chunks.h"
#include "runtime/engine/ranks/stored_model.h"
#include "tiering/buffer.h"

namespace penstock::engine {

class ReadAhead {
 public:
  // As many reads are under way as creation has writes. A chunk of a plane may begin and end within an aligned sector.
  static constexpr uint64_t kWindowBytes = aio::kChunkBytes + 2 * kAlignmentBytes;
  static constexpr uint64_t kMemoryBytes = aio::kChunksUnderWay * kWindowBytes;

  // `memory`: kMemoryBytes. `cut`, `map` and `shape` are the new rank's; all outlive it.
  ReadAhead(IoEngine& io, const StoredModel& source, std::span<std::byte> memory, const RankWorkload& cut,
            const ShardMap& map, const StoreShape& shape)
      : io_(io), source_(source), windows_(Tier::host, memory, kWindowBytes), cut_(cut), map_(map), shape_(shape) {}
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // REQUIRES: in the order of TileStore::create().
  Status fill(TileId tile, std::span<std::byte> bytes);
  uint64_t read_bytes() const { return read_bytes_; }

 private:
  struct Reading {
    StoredRun piece;
    aio::TileStore::Reading place;
    uint64_t tile_offset_bytes = 0;  // of what is in the window
    uint64_t skip_bytes = 0;         // in the window, before the piece
    uint64_t length_bytes = 0;
    Transfer transfer;
  };

  std::optional<uint32_t> model_unit(TileId tile) const { return cut_.model_unit[shape_.tiles[tile].unit]; }
  Status read_ahead();
  std::optional<StoredRun> next_piece();
  bool next_chunk();
  Status compare(const Reading& reading, const std::byte* window) const;

  IoEngine& io_;
  const StoredModel& source_;
  BufferPool windows_;
  const RankWorkload& cut_;
  const ShardMap& map_;
  const StoreShape& shape_;
  std::deque<Reading> under_way_;
  uint64_t read_bytes_ = 0;

  // What is to be asked for next.
  TileId tile_ = 0;  // behind that of the chunks
  std::vector<aio::TileChunk> chunks_;
  size_t chunk_ = 0;
  uint32_t unit_ = 0, plane_ = 0;
  ElementRun wanted_;  // of the unit
};

}  // namespace penstock::engine
