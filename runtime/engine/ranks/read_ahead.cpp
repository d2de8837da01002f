#include "runtime/engine/ranks/read_ahead.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu_optim/checksum.h"
#include "tiering/check.h"

namespace penstock::engine {

ReadAhead::~ReadAhead() {
  for (Reading& reading : under_way_) {
    (void)std::move(reading.transfer).wait();
    source_.store(reading.piece.rank).end_read(reading.place.place);
  }
}

Status ReadAhead::fill(TileId tile, std::span<std::byte> bytes) {
  if (!model_unit(tile)) {  // it stands in for units of other ranks
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    return Status();
  }
  while (!bytes.empty()) {
    PENSTOCK_TRY(read_ahead());
    CHECK(!under_way_.empty(), "tile ", tile, ": ", bytes.size(), " B more are asked for than there are");
    Reading next = std::move(under_way_.front());
    under_way_.pop_front();
    const Result<Lease> window = std::move(next.transfer).wait();
    Status status = source_.store(next.piece.rank).read_status(next.place.place, window.status());
    if (status.ok()) status = compare(next, window->data());
    source_.store(next.piece.rank).end_read(next.place.place);
    PENSTOCK_TRY(status);
    std::memcpy(bytes.data(), window->data() + next.skip_bytes, next.length_bytes);
    bytes = bytes.subspan(next.length_bytes);
    read_bytes_ += next.length_bytes;
  }
  return Status();
}

Status ReadAhead::read_ahead() {
  while (windows_.pieces_free() > 0) {
    const std::optional<StoredRun> piece = next_piece();
    if (!piece) return Status();
    aio::TileStore& store = source_.store(piece->rank);
    const TileLayout layout = store.shape().layout(piece->tile);
    const TileLayout::Place& plane = layout.places[piece->plane];
    const uint64_t begin = plane.offset_bytes + plane.plane.bytes(piece->run.begin);
    const uint64_t length = plane.plane.bytes(piece->run.elements());
    const uint64_t aligned = round_down(begin, kAlignmentBytes);
    std::optional<aio::TileStore::Reading> place =
        store.begin_read(piece->tile, {aligned, round_up(begin + length, kAlignmentBytes) - aligned});
    if (!place) {
      return Status(Code::kEnvironment,
                    text("read of tile ", piece->tile, " of rank ", piece->rank, ": it is still being written"));
    }
    const std::vector<Extent> extents = place->extents;
    under_way_.push_back({*piece, std::move(*place), aligned, begin - aligned, length,
                          io_.read(extents, *windows_.try_lease(), IoEngine::kWhenever)});
  }
  return Status();
}

std::optional<StoredRun> ReadAhead::next_piece() {
  while (wanted_.begin >= wanted_.end) {
    if (!next_chunk()) return std::nullopt;
  }
  const StoredRun piece = source_.find(unit_, plane_, wanted_.begin, wanted_.elements());
  wanted_.begin += piece.run.elements();
  return piece;
}

bool ReadAhead::next_chunk() {
  while (chunk_ == chunks_.size()) {
    if (tile_ == shape_.tiles.size()) return false;
    chunks_ = model_unit(tile_) ? aio::chunks_of(shape_, tile_) : std::vector<aio::TileChunk>();
    chunk_ = 0;
    ++tile_;
  }
  const aio::TileChunk& chunk = chunks_[chunk_++];
  const StoreShape::Tile& tile = shape_.tiles[chunk.tile];
  const uint64_t block_bytes = shape_.kind(chunk.tile).planes[chunk.plane].bytes(kBlockElements);
  unit_ = *model_unit(chunk.tile);
  plane_ = chunk.plane;
  const uint64_t first = map_.shard(unit_, shape_.rank).begin + tile.first_element;
  const uint64_t begin_block = chunk.plane_offset_bytes / block_bytes;
  const uint64_t end_block = begin_block + ceil_div(chunk.length_bytes, block_bytes);
  wanted_ = {first + begin_block * kBlockElements, first + std::min(end_block * kBlockElements, tile.elements)};
  return true;
}

Status ReadAhead::compare(const Reading& reading, const std::byte* window) const {
  const aio::TileStore& store = source_.store(reading.piece.rank);
  const TileId tile = reading.piece.tile;
  const TileLayout layout = store.shape().layout(tile);
  for (uint64_t first = reading.piece.run.begin; first < reading.piece.run.end; first += kBlockElements) {
    const uint64_t number = first / kBlockElements * layout.places.size() + reading.piece.plane;
    const TileBlock block = block_of(layout, store.shape().tiles[tile].elements, number);
    const std::span<const std::byte> bytes(window + (block.offset_bytes - reading.tile_offset_bytes),
                                           block.length_bytes);
    if (cpu_optim::checksum_function()(bytes, checksum_seed(tile, number)) == reading.place.checksums[number]) continue;
    return store.checksum_mismatch(reading.place.place, number).within("read");
  }
  return Status();
}

}  // namespace penstock::engine
