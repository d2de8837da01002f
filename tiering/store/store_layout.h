// StoreLayout says where in the files of a store everything lies: a pure function of what is stored, the number of
// slots and the drives' shares.
//
// Each drive has one file of fixed size. At its beginning, alike on every drive: header and root (each twice, apart),
// the shape (twice), the table and state pages in all their slots. Then the tiles: slot 0 of all, slot 1 of all, and so
// on. Tiles that are never updated have one slot and come last.
//
// A tile's weight plane is one part of it and its states are another, because they are read apart. A part of
// kSpreadBytes and more lies on all drives in their shares, so that one tile keeps all of them busy; a smaller one lies
// whole on the drive that is furthest below its share of such parts. The order of the parts within a slot is chosen
// when the store is made.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tiering/store/store_shape.h"
#include "tiering/store/table_page.h"

namespace penstock {

constexpr uint64_t kSpreadBytes = 4 * kMiB;
constexpr uint32_t kShareWhole = 10000;

// The rates as shares in ten-thousandths, at least one each. No rates: equal shares.
std::vector<uint32_t> shares_of(const std::vector<double>& rates, uint32_t drives);

// The drive that has been given the fewest bytes relative to its share; of equals, the first.
uint32_t furthest_below_share(std::span<const uint64_t> given_bytes, std::span<const uint32_t> shares);

// beside_state: tile after tile, each one's weight before its states, so that one write covers a whole tile.
// by_unit: the weights of all tiles of a unit, then their states, so that forward reads a unit's weights from one run
// of each drive's file.
enum class WeightPlacement : uint8_t { beside_state, by_unit };
constexpr WeightPlacement kDefaultWeightPlacement = WeightPlacement::beside_state;

// The bytes of every slot of every tile, which the files of a store must hold together. Making a layout takes time in
// proportion to them, so check this first for a shape that was read from a file.
uint64_t slot_bytes_of(const StoreShape& shape, uint32_t slots);

class StoreLayout {
 public:
  // A part of one tile's bytes that is one run in the file of one drive.
  struct FileRange {
    uint32_t drive = 0;
    uint64_t file_offset_bytes = 0;
    uint64_t tile_offset_bytes = 0;
    uint64_t length_bytes = 0;
  };

  // REQUIRES: shape.validate() and state.validate() are ok; 1 <= slots <= kSlotsMax.
  StoreLayout(const StoreShape& shape, uint32_t slots, std::vector<uint32_t> shares, StateCapacity state = {},
              WeightPlacement weights = kDefaultWeightPlacement);

  // Where bytes [offset, offset + length) of the tile lie, in their order.
  std::vector<FileRange> file_ranges(TileId tile, uint32_t slot, uint64_t offset_bytes, uint64_t length_bytes) const;
  uint64_t tile_bytes(TileId tile) const { return tiles_[tile].size_bytes; }
  uint32_t slots_of(TileId tile) const { return tiles_[tile].updated ? slots_ : 1; }

  static constexpr uint64_t header_offset(uint32_t copy) { return copy * kSecondCopyBytes; }
  static constexpr uint64_t root_offset(uint64_t place) { return place * kSecondCopyBytes + kAlignmentBytes; }
  // The place of the first copy is fixed; that of the second depends on the length of the shape.
  static constexpr uint64_t shape_offset() { return 2 * kSecondCopyBytes; }
  static constexpr uint64_t shape_offset(uint32_t copy, uint64_t shape_bytes) {
    return shape_offset() + copy * round_up(shape_bytes, kSecondCopyBytes);
  }
  uint64_t page_offset(uint32_t page, uint32_t slot) const;

  const TableGeometry& table() const { return *table_; }
  std::shared_ptr<const TableGeometry> shared_table() const { return table_; }
  uint32_t slots() const { return slots_; }
  // Pages are never overwritten in place, even where tiles are.
  uint32_t page_slots() const { return slots_ < 2 ? 2 : slots_; }
  uint32_t drives() const { return static_cast<uint32_t>(shares_.size()); }
  const std::vector<uint32_t>& shares() const { return shares_; }
  // On every drive: what lies before it are records and pages.
  uint64_t tiles_offset() const { return tiles_offset_; }
  uint64_t file_bytes(uint32_t drive) const { return file_bytes_[drive]; }

 private:
  static constexpr size_t kPartsMax = 2;
  static constexpr uint64_t kSecondCopyBytes = 64 * kKiB;

  // A part of a tile on one drive, counted from the beginning of the slot's region on it.
  struct RegionRange {
    uint32_t drive;
    uint64_t region_offset_bytes;
    uint64_t tile_offset_bytes;
    uint64_t length_bytes;
  };
  struct TilePlace {
    uint64_t size_bytes = 0;
    bool updated = true;
    std::array<uint32_t, kPartsMax> first_range{};
    std::array<uint32_t, kPartsMax> range_count{};
  };
  class Spreader;

  uint32_t slots_;
  std::vector<uint32_t> shares_;
  std::shared_ptr<const TableGeometry> table_;
  uint64_t pages_offset_ = 0;
  uint64_t tiles_offset_ = 0;
  std::vector<uint64_t> region_bytes_;  // of one slot of every updated tile, by drive
  std::vector<uint64_t> file_bytes_;
  std::vector<TilePlace> tiles_;
  std::array<std::vector<RegionRange>, kPartsMax> ranges_;  // of the first and of the second parts, in order of tiles
};

}  // namespace penstock
