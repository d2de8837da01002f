// Copies of a store's steps: what belongs into one, and the way back.
#include <algorithm>
#include <set>

#include "aio/store/store_parts.h"
#include "aio/store/tile_chunks.h"
#include "aio/windowed_io.h"
#include "tiering/check.h"

namespace penstock::aio {
namespace {

// Carries tiles from the files of one store to those of another.
class Carrier {
 public:
  Carrier(IoEngine& engine, const StoreParts& from, const StoreParts& to, ChecksumFunction checksum,
          std::span<std::byte> memory)
      : from_(from), to_(to), checksum_(checksum), pool_(Tier::host, memory, kChunkBytes), windowed_(engine, pool_) {
    CHECK(pool_.pieces() > 0, "carrying tiles takes at least ", kChunkBytes, " B of memory");
  }

  Status carry(TileSlot from, TileSlot to) {
    for (const TileChunk& chunk : chunks_of(from_.shape, from.tile)) {
      PENSTOCK_TRY_ASSIGN(window, windowed_.free_window());
      const std::vector<Extent> source =
          extents_of(from_.layout, from_.files, from, chunk.tile_offset_bytes, chunk.padded_bytes());
      windowed_.read(source, std::move(window), [this, chunk, from, to](Result<Lease> read) -> Status {
        PENSTOCK_TRY(read.status());
        PENSTOCK_TRY(compare(chunk, from, read->bytes()));
        windowed_.write(extents_of(to_.layout, to_.files, to, chunk.tile_offset_bytes, chunk.padded_bytes()),
                        std::move(*read));
        return Status();
      });
    }
    return Status();
  }
  Status finish() { return windowed_.finish(); }

 private:
  Status compare(const TileChunk& chunk, TileSlot from, std::span<std::byte> bytes) {
    Status answer;
    for_each_block(
        from_.shape, chunk, bytes, [&](uint64_t number, const TileBlock& block, std::span<std::byte> content) {
          if (checksum_(content, checksum_seed(chunk.tile, number)) == from_.table.checksums(chunk.tile)[number])
            return;
          const BlockPlace place = place_of(from_.layout, from_.files, from, block);
          answer = Status(
              Code::kCorrupt,
              text(block.length_bytes, " B at ", place.offset_bytes, " of ", place.file,
                   " fail the checksum they were written with: ", describe_block(from_.shape, chunk.tile, block)),
              "roll back to another step; the store is as it was");
        });
    return answer;
  }

  const StoreParts& from_;
  const StoreParts& to_;
  const ChecksumFunction checksum_;
  BufferPool pool_;
  WindowedIo windowed_;
};

Status refuse_bad(const ScrubReport& report, const char* of_what, const std::string& remedy) {
  if (report.bad.empty()) return Status();
  const BadBlock& first = report.bad.front();
  return Status(Code::kCorrupt,
                text(first.file, ": the block at ", first.offset_bytes, of_what, ", of ", first.tensor,
                     first.unread.ok() ? ", fails the checksum it was written with" : ", cannot be read"),
                remedy);
}

Status refuse_copy_of_another(const TileStore& copy, const TileStore& store) {
  if (copy.id() == store.id()) return Status();
  return Status(Code::kUsage, text("the copy is of store ", copy.id(), ", this is store ", store.id()),
                "give the copies that were made of this store");
}

}  // namespace

std::vector<TileStore::FileRun> TileStore::runs_of_durable_step() const {
  const StoreLayout& layout = parts_->layout;
  std::vector<std::vector<FileRun>> runs(layout.drives());
  for (uint32_t drive = 0; drive < layout.drives(); ++drive)
    runs[drive].push_back({parts_->files[drive]->path(), 0, layout.tiles_offset()});
  for (TileId tile = 0; tile < tiles_.tiles(); ++tile) {
    if (!parts_->shape.kind(tile).updated && layout.slots() > 1) continue;
    for (const StoreLayout::FileRange& range :
         layout.file_ranges(tile, tiles_.durable(tile), 0, layout.tile_bytes(tile)))
      runs[range.drive].push_back({parts_->files[range.drive]->path(), range.file_offset_bytes, range.length_bytes});
  }
  std::vector<FileRun> merged;
  for (std::vector<FileRun>& of_drive : runs) {
    std::sort(of_drive.begin(), of_drive.end(),
              [](const FileRun& a, const FileRun& b) { return a.offset_bytes < b.offset_bytes; });
    for (FileRun& run : of_drive) {
      if (!merged.empty() && merged.back().file == run.file &&
          merged.back().offset_bytes + merged.back().length_bytes == run.offset_bytes) {
        merged.back().length_bytes += run.length_bytes;
      } else {
        merged.push_back(std::move(run));
      }
    }
  }
  return merged;
}

Status TileStore::check_copy(TileStore& copy, std::span<std::byte> memory, const ScrubProgress& progress) const {
  PENSTOCK_TRY(refuse_copy_of_another(copy, *this));
  PENSTOCK_TRY_ASSIGN(report, verify_tiles(engine_, *copy.parts_, copy.parts_->table, checksum_, memory, progress,
                                           VerifiedTiles::updated));
  return refuse_bad(report, " of the copy", "roll back to another step; the store is as it was");
}

Status TileStore::check_durable_step(std::span<std::byte> memory, const ScrubProgress& progress) const {
  PENSTOCK_TRY_ASSIGN(
      report, verify_tiles(engine_, *parts_, parts_->table, checksum_, memory, progress, VerifiedTiles::updated));
  return refuse_bad(report, "",
                    "`penstock checkpoint scrub` lists every bad block; `penstock checkpoint rollback` to a "
                    "step that is kept mends them");
}

Status TileStore::become(TileStore& copy, std::span<std::byte> memory, const ScrubProgress& progress) {
  CHECK(parts_->layout.slots() > 1, "a store of one slot cannot take back a copy");
  PENSTOCK_TRY(status_);
  PENSTOCK_TRY(refuse_copy_of_another(copy, *this));
  struct Written {
    TileSlot place;
    std::span<const uint64_t> checksums;
  };
  std::vector<Written> written_tiles;
  std::set<TileId> damaged;
  {
    PENSTOCK_TRY_ASSIGN(report,
                        verify_tiles(engine_, *parts_, parts_->table, checksum_, memory, {}, VerifiedTiles::updated));
    for (const BadBlock& block : report.bad) damaged.insert(block.tile);
  }
  const Status carried = [&]() -> Status {
    Carrier carrier(engine_, *copy.parts_, *parts_, checksum_, memory);
    for (TileId tile = 0; tile < tiles_.tiles(); ++tile) {
      if (!parts_->shape.kind(tile).updated) continue;
      if (progress) PENSTOCK_TRY(progress(static_cast<double>(tile) / static_cast<double>(tiles_.tiles())));
      const std::span<const uint64_t> wanted = copy.parts_->table.checksums(tile);
      const std::span<const uint64_t> here = versions_[tiles_.current(tile)].checksums(tile);
      const bool is_as_wanted = std::equal(wanted.begin(), wanted.end(), here.begin(), here.end());
      if (is_as_wanted && !damaged.contains(tile)) continue;
      const std::optional<uint32_t> slot = tiles_.try_begin_write(tile, NewVersion::unconfirmed);
      CHECK(slot, "tile ", tile, " has no free slot between steps");
      written_tiles.push_back({{tile, *slot}, wanted});
      PENSTOCK_TRY(carrier.carry({tile, copy.tiles_.current(tile)}, written_tiles.back().place));
    }
    return carrier.finish();
  }();
  for (const Written& tile : written_tiles) {
    if (carried.ok()) {
      written(tile.place, tile.checksums);
    } else {
      write_failed(tile.place, carried);
    }
  }
  if (!carried.ok()) {
    discard();
    return carried;
  }
  confirm();
  return commit_and_wait(copy.payload());
}

}  // namespace penstock::aio
