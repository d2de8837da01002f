// StoreShape says what a tile store holds: units, their parameters, and the tiles that their elements are cut into.
//
// It is written into the store when that is made, so that a store can be listed and scrubbed without the model, and so
// that opening it for another model is refused with what differs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tiering/state_layout.h"
#include "tiering/status.h"
#include "tiering/tier.h"
#include "tiering/tile_map.h"

namespace penstock {

// Of a shape's encoding: ten million tiles. Opening a store takes several times as much memory.
constexpr uint64_t kShapeBytesMax = 256 * kMiB;

struct StoreShape {
  struct Unit {
    std::string name;
    std::vector<Parameter> parameters;
  };
  // The planes that a tile's slot holds, in TileLayout's order, and whether steps ever write them.
  struct Kind {
    std::vector<Plane> planes;
    bool updated = true;
    bool operator==(const Kind&) const = default;
  };
  // A run of a unit's elements.
  struct Tile {
    uint32_t unit = 0;
    uint32_t kind = 0;
    uint64_t first_element = 0;
    uint64_t elements = 0;
  };

  std::vector<Unit> units;
  std::vector<Kind> kinds;
  std::vector<Tile> tiles;
  // Whose shard this is. The elements above are those of this rank's shard.
  uint32_t rank = 0;
  uint32_t ranks = 1;

  // The shape of a workload's tiles: weight first, then the resting planes; frozen units have the weight only,
  // in its dtype or in codes.
  static StoreShape of(const Workload& workload, const TileMap& tiles, uint32_t rank = 0);

  const Kind& kind(TileId tile) const { return kinds[tiles[tile].kind]; }
  TileLayout layout(TileId tile) const { return TileLayout(kind(tile).planes, tiles[tile].elements); }
  uint64_t parameter_elements() const;
  // Whether weights of some tiles rest in codes.
  bool has_codes() const;

  // Checks that every index is in range, that every tile has elements and planes, and that sizes do not overflow.
  Status validate() const;
  uint64_t digest() const;
  struct Names {
    std::string_view ours = "the model", theirs = "the store";
  };
  // The first difference, for a message: "the model has 24 units, the store 12". Empty if there is none.
  std::string first_difference(const StoreShape& theirs, const Names& names) const;
  std::string first_difference(const StoreShape& theirs) const { return first_difference(theirs, Names()); }

  std::vector<std::byte> encode() const;
  // Refuses what encode() did not write; what it accepts passes validate().
  static Result<StoreShape> decode(std::span<const std::byte> bytes);
};

// What one checksum covers: one plane's part of one block of kBlockElements elements. The checksums of a tile are
// counted block by block, and inside a block plane by plane.
struct TileBlock {
  uint32_t plane = 0;
  uint64_t first_element = 0;  // inside the tile
  uint64_t elements = 0;
  uint64_t offset_bytes = 0;  // inside the tile
  uint64_t length_bytes = 0;
};

uint64_t checksum_count(const StoreShape& shape, TileId tile);
TileBlock block_of(const TileLayout& layout, uint64_t elements, uint64_t checksum_number);

// The seed of a block's checksum is its place, so that a block that belongs elsewhere does not pass.
constexpr uint64_t checksum_seed(TileId tile, uint64_t checksum_number) {
  return (uint64_t{tile} << 32) + checksum_number;
}

// Names a tile for a message: "tile 3 (h.0.attn.weight to h.0.mlp.weight)".
std::string describe_tile(const StoreShape& shape, TileId tile);

// Names a block for a message: "wte.weight[0..65536) momentum".
std::string describe_block(const StoreShape& shape, TileId tile, const TileBlock& block);

}  // namespace penstock
