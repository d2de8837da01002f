// TileMap cuts every unit's shard into tiles: the update's unit of work and I/O.
//
// A tile's slot holds its weight plane first, then the resting planes of TileLayout: an update writes the whole slot,
// and reads all but the weight where backward has left that in memory. A tile never crosses a unit; all tiles of a unit
// but its last have the same number of elements, a multiple of kBlockElements, so that blocks of norms and checksums
// never depend on the tile size.
#pragma once

#include <cstdint>
#include <vector>

#include "tiering/unit.h"

namespace penstock {

// Counted over all tiles of a rank's shard, unit after unit.
using TileId = uint32_t;

struct Tile {
  uint32_t unit = 0;
  uint64_t first_element = 0;  // within the unit
  uint64_t elements = 0;
  uint64_t weight_bytes = 0;    // as it rests, padded; at offset 0 of the slot. In codes: these, and behind them scales
  uint64_t state_bytes = 0;     // the resting planes, padded; they follow
  uint64_t gradient_bytes = 0;  // padded

  uint64_t slot_bytes() const { return weight_bytes + state_bytes; }
};

class TileMap {
 public:
  // REQUIRES: tile_elements is a multiple of kBlockElements.
  TileMap(const Workload& workload, uint64_t tile_elements);

  const std::vector<Tile>& tiles() const { return tiles_; }
  const Tile& operator[](TileId tile) const { return tiles_[tile]; }
  uint32_t size() const { return static_cast<uint32_t>(tiles_.size()); }
  uint32_t units() const { return static_cast<uint32_t>(first_of_unit_.size()) - 1; }
  // The tiles of a unit are [first_of(unit), first_of(unit + 1)).
  uint32_t first_of(uint32_t unit) const { return first_of_unit_[unit]; }
  uint64_t tile_elements() const { return tile_elements_; }
  // Of all tiles of a unit: its weights as they rest, and its gradient.
  uint64_t weight_bytes(uint32_t unit) const { return sum_of(unit, &Tile::weight_bytes); }
  uint64_t gradient_bytes(uint32_t unit) const { return sum_of(unit, &Tile::gradient_bytes); }

  // Of the largest tile: what every piece of a pool must hold.
  uint64_t slot_bytes_max() const { return slot_bytes_max_; }
  uint64_t gradient_bytes_max() const { return gradient_bytes_max_; }

 private:
  uint64_t sum_of(uint32_t unit, uint64_t Tile::*bytes) const;

  std::vector<Tile> tiles_;
  std::vector<uint32_t> first_of_unit_;
  uint64_t tile_elements_;
  uint64_t slot_bytes_max_ = 0;
  uint64_t gradient_bytes_max_ = 0;
};

}  // namespace penstock
