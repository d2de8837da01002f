#include "tiering/tile_map.h"

#include <algorithm>

namespace penstock {

TileMap::TileMap(const Workload& workload, uint64_t tile_elements) : tile_elements_(tile_elements) {
  CHECK(tile_elements > 0 && tile_elements % kBlockElements == 0, "tiles of ", tile_elements, " elements");
  const uint64_t weight_size = bytes_of(workload.form.weight);
  const uint64_t gradient_size = bytes_of(workload.form.gradient);
  const uint64_t whole_state_bytes = TileLayout(workload.form, tile_elements).size_bytes;
  for (uint32_t u = 0; u < workload.units.size(); ++u) {
    const Unit& unit = workload.units[u];
    first_of_unit_.push_back(size());
    for (uint64_t first = 0; first < unit.elements; first += tile_elements) {
      Tile tile;
      tile.unit = u;
      tile.first_element = first;
      tile.elements = std::min(tile_elements, unit.elements - first);
      tile.weight_bytes = unit.code ? TileLayout(coded_planes(*unit.code), tile.elements).size_bytes
                                    : round_up(tile.elements * weight_size, kAlignmentBytes);
      if (unit.trainable) {
        const bool whole = tile.elements == tile_elements;
        tile.state_bytes = whole ? whole_state_bytes : TileLayout(workload.form, tile.elements).size_bytes;
        tile.gradient_bytes = round_up(tile.elements * gradient_size, kAlignmentBytes);
      }
      slot_bytes_max_ = std::max(slot_bytes_max_, tile.slot_bytes());
      gradient_bytes_max_ = std::max(gradient_bytes_max_, tile.gradient_bytes);
      tiles_.push_back(tile);
    }
  }
  first_of_unit_.push_back(size());
}

uint64_t TileMap::sum_of(uint32_t unit, uint64_t Tile::*bytes) const {
  uint64_t sum = 0;
  for (TileId tile = first_of(unit); tile < first_of(unit + 1); ++tile) sum += tiles_[tile].*bytes;
  return sum;
}

}  // namespace penstock
