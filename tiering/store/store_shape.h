// StoreShape says what a tile store holds: units, their parameters, and the tiles that their elements are cut into.
//
// It is written into the store when that is made, so that a store can be listed and scrubbed without the model, and
// another model's is refused by name.
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

// Of a shape's encoding: ten million tiles. Whoever opens a store takes several times as much memory.
constexpr uint64_t kShapeBytesMax = 256 * kMiB;

struct StoreShape {
  struct Unit {
    std::string name;
    std::vector<Parameter> parameters;
  };
  // What rests in a tile's slots, plane after plane as TileLayout lays them, and whether steps ever write it.
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
  // Whose shard this is; elements above are of this rank's shard alone.
  uint32_t rank = 0;
  uint32_t ranks = 1;

  // The shape of a workload's tiles: weight first, then the resting planes; frozen units have the weight only.
  static StoreShape of(const Workload& workload, const TileMap& tiles, uint32_t rank = 0);

  const Kind& kind(TileId tile) const { return kinds[tiles[tile].kind]; }
  TileLayout layout(TileId tile) const { return TileLayout(kind(tile).planes, tiles[tile].elements); }
  uint64_t parameter_elements() const;

  // Every index in range, every tile with elements and planes, and not more elements than can be counted.
  Status validate() const;
  uint64_t digest() const;
  // What differs first, for people: "unit h.3 has 120 elements here and 96 there". Empty when equal.
  std::string first_difference(const StoreShape& there) const;

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

// The seed of a block's checksum: its place, so that a block which belongs elsewhere is not believed.
constexpr uint64_t checksum_seed(TileId tile, uint64_t checksum_number) {
  return (uint64_t{tile} << 32) + checksum_number;
}

// "wte.weight[0..65536) momentum": what a bad block means to people.
std::string describe_block(const StoreShape& shape, TileId tile, const TileBlock& block);

}  // namespace penstock
