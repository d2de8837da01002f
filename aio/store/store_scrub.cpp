// Reads every block of a store and compares it with its checksum in the table.
#include <algorithm>

#include "aio/store/store_parts.h"
#include "aio/store/tile_chunks.h"
#include "aio/windowed_io.h"
#include "tiering/check.h"

namespace penstock::aio {
namespace {

class Verification {
 public:
  Verification(IoEngine& engine, const StoreParts& parts, const TileTable& table, ChecksumFunction checksum,
               std::span<std::byte> memory)
      : engine_(engine),
        files_(parts.files),
        shape_(parts.shape),
        layout_(parts.layout),
        table_(table),
        checksum_(checksum),
        pool_(Tier::host, memory, kChunkBytes),
        windowed_(engine, pool_) {
    CHECK(pool_.pieces() > 0, "verifying needs at least ", kChunkBytes, " B of memory");
  }

  Result<ScrubReport> run(const ScrubProgress& progress, VerifiedTiles which) {
    for (TileId tile = 0; tile < shape_.tiles.size(); ++tile) {
      if (which == VerifiedTiles::updated && !shape_.kind(tile).updated) continue;
      for (const TileChunk& chunk : chunks_of(shape_, tile)) PENSTOCK_TRY(read(chunk));
      if (progress) PENSTOCK_TRY(progress(static_cast<double>(tile) / static_cast<double>(shape_.tiles.size())));
    }
    PENSTOCK_TRY(windowed_.finish());
    for (const TileChunk& chunk : unreadable_) {
      if (progress) PENSTOCK_TRY(progress(1));
      compare_block_by_block(chunk);
    }
    std::sort(report_.bad.begin(), report_.bad.end(), [](const BadBlock& a, const BadBlock& b) {
      return std::pair(a.file, a.offset_bytes) < std::pair(b.file, b.offset_bytes);
    });
    return std::move(report_);
  }

 private:
  TileSlot slot_of(TileId tile) const { return {tile, static_cast<uint32_t>(table_.slot(tile))}; }

  Status read(const TileChunk& chunk) {
    PENSTOCK_TRY_ASSIGN(window, windowed_.free_window());
    const std::vector<Extent> extents =
        extents_of(layout_, files_, slot_of(chunk.tile), chunk.tile_offset_bytes, chunk.padded_bytes());
    windowed_.read(extents, std::move(window), [this, chunk](Result<Lease> read) {
      if (read.ok()) {
        compare(chunk, read->bytes());
      } else {
        unreadable_.push_back(chunk);
      }
      return Status();
    });
    return Status();
  }

  void compare(const TileChunk& chunk, std::span<std::byte> bytes) {
    for_each_block(shape_, chunk, bytes, [&](uint64_t number, const TileBlock& block, std::span<std::byte> content) {
      uint64_t expected = table_.checksums(chunk.tile)[number];
      bool good = checksum_(content, checksum_seed(chunk.tile, number)) == expected;
      count(chunk.tile, block, good, Status());
    });
  }

  // Of a chunk that the drive refused to read, some blocks may still be readable.
  void compare_block_by_block(const TileChunk& chunk) {
    const TileLayout layout = shape_.layout(chunk.tile);
    std::vector<std::byte> nothing(chunk.length_bytes);
    for_each_block(shape_, chunk, nothing, [&](uint64_t number, const TileBlock& block, std::span<std::byte>) {
      uint64_t from = round_down(block.offset_bytes, kAlignmentBytes);
      uint64_t to = round_up(block.offset_bytes + block.length_bytes, kAlignmentBytes);
      std::vector<Extent> extents = extents_of(layout_, files_, slot_of(chunk.tile), from, to - from);
      Result<Lease> read = engine_.read(extents, *pool_.try_lease(), IoEngine::kWhenever).wait();
      bool good = read.ok() && checksum_(read->bytes().subspan(block.offset_bytes - from, block.length_bytes),
                                         checksum_seed(chunk.tile, number)) == table_.checksums(chunk.tile)[number];
      count(chunk.tile, block, good, read.status());
    });
  }

  void count(TileId tile, const TileBlock& block, bool good, const Status& unread) {
    ++report_.blocks;
    if (good) return;
    const BlockPlace place = place_of(layout_, files_, slot_of(tile), block);
    report_.bad.push_back({place.file, place.offset_bytes, tile, describe_block(shape_, tile, block), unread});
  }

  IoEngine& engine_;
  const StoreFiles& files_;
  const StoreShape& shape_;
  const StoreLayout& layout_;
  const TileTable& table_;
  const ChecksumFunction checksum_;
  BufferPool pool_;
  WindowedIo windowed_;
  std::vector<TileChunk> unreadable_;
  ScrubReport report_;
};

}  // namespace

uint64_t ScrubReport::unread() const {
  return static_cast<uint64_t>(
      std::count_if(bad.begin(), bad.end(), [](const BadBlock& block) { return !block.unread.ok(); }));
}

Result<ScrubReport> verify_tiles(IoEngine& engine, const StoreParts& parts, const TileTable& table,
                                 ChecksumFunction checksum, std::span<std::byte> memory, const ScrubProgress& progress,
                                 VerifiedTiles which) {
  return Verification(engine, parts, table, checksum, memory).run(progress, which);
}

}  // namespace penstock::aio
