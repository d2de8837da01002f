#include "tiering/store/store_shape.h"

#include <algorithm>
#include <random>

#include "aio/store/tile_store.h"
#include "tests/fuzz/target.h"
#include "tests/support/store_shapes.h"

namespace penstock::fuzz {
namespace {

constexpr uint64_t kLaidOutBytesMost = kGiB;  // a layout takes time by the bytes that it lays out
constexpr long double kCountable = 18446744073709551615.0L;

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    std::mt19937_64 random(seed);
    all.push_back(random_shape(random).encode());
  }
  StoreShape shard = small_shape(2, 1000, kBlockElements);
  shard.rank = 3;
  shard.ranks = 8;
  all.push_back(shard.encode());
  return all;
}

// The first, the last and one in between.
std::string blocks_of(const StoreShape& shape, TileId tile) {
  const TileLayout layout = shape.layout(tile);
  const uint64_t count = checksum_count(shape, tile), elements = shape.tiles[tile].elements;
  for (const uint64_t number : {uint64_t{0}, count / 2, count - 1}) {
    const TileBlock block = block_of(layout, elements, number);
    if (block.elements == 0 || block.first_element + block.elements > elements) return "a block outside of its tile";
    if (block.offset_bytes + block.length_bytes > layout.size_bytes) return "a block's bytes outside of their tile";
    if (describe_block(shape, tile, block).empty()) return "a block without a name";
  }
  return "";
}

// Every byte of every slot can be counted.
std::string sizes_of(const StoreShape& shape) {
  long double elements = 0, bytes = 0, words = 0;
  for (TileId tile = 0; tile < shape.tiles.size(); ++tile) {
    elements += static_cast<long double>(shape.tiles[tile].elements);
    for (const Plane& plane : shape.kind(tile).planes) {
      bytes += static_cast<long double>(plane.bytes(shape.tiles[tile].elements)) + kAlignmentBytes;
    }
    words += 1 + static_cast<long double>(checksum_count(shape, tile));
  }
  if (elements > 0x1p48L) return "more elements than it says that there may be";
  if (bytes * kSlotsMax > kCountable || words * 8 * (1 + kSlotsMax) > kCountable)
    return "more bytes than can be counted";
  if (static_cast<long double>(shape.parameter_elements()) > elements * kSlotsMax + 0x1p50L)
    return "elements from nowhere";
  const TableGeometry geometry(shape);
  if (static_cast<long double>(geometry.words()) != words) return "a table of other words";
  if (geometry.pages() == 0 || geometry.last_page(static_cast<TileId>(shape.tiles.size()) - 1) >= geometry.pages()) {
    return "a tile outside of the table";
  }
  if (bytes > kLaidOutBytesMost) return "";
  return aio::TileStore::bytes_needed(shape, 2, 3).size() == 3 ? "" : "no layout";
}

std::string run(std::span<const std::byte> input) {
  const Result<StoreShape> shape = StoreShape::decode(input);
  if (!shape.ok()) return "";
  if (!shape->validate().ok()) return "accepted and not valid: " + shape->validate().message();
  const Bytes again = shape->encode();
  if (!std::equal(again.begin(), again.end(), input.begin(), input.end())) return "encode() has not written it";
  if (!shape->first_difference(*shape).empty()) return "differs from itself: " + shape->first_difference(*shape);
  static const StoreShape other = small_shape(2, 1000, kBlockElements);
  if ((shape->digest() == other.digest()) != other.first_difference(*shape).empty()) return "no word of a difference";
  for (TileId tile = 0; tile < std::min<size_t>(shape->tiles.size(), 100); ++tile) {
    if (std::string wrong = blocks_of(*shape, tile); !wrong.empty()) return wrong;
  }
  return sizes_of(*shape);
}

}  // namespace

const Target store_shape{.name = "store_shape", .seeds = seeds, .run = run, .rounds = 30000};

}  // namespace penstock::fuzz
