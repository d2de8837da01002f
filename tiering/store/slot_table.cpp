#include "tiering/store/slot_table.h"

#include <utility>

#include "tiering/check.h"

namespace penstock {

SlotTable::SlotTable(std::vector<uint8_t> durable_slots, uint32_t slots) : slots_(slots) {
  CHECK(slots >= 1 && slots <= kSlotsMax, slots, " slots");
  tiles_.reserve(durable_slots.size());
  for (uint8_t slot : durable_slots) {
    CHECK(slot < slots);
    tiles_.push_back({.durable = slot, .sealed = slot, .current = slot});
  }
}

bool SlotTable::is_free(TileId tile, uint32_t slot, NewVersion version) const {
  const Names& names = tiles_[tile];
  if (names.writing[slot] || names.reads[slot] > 0) return false;
  if (slots_ == 1) return in_place_allowed_ && !is_sealed_ && version == NewVersion::final;
  if (slot == names.durable || slot == names.sealed) return false;
  if (slot == names.next) return false;
  return slot != names.current || version == NewVersion::final;
}

std::optional<uint32_t> SlotTable::try_begin_read(TileId tile) {
  Names& names = tiles_[tile];
  if (names.writing[names.current]) return std::nullopt;
  ++names.reads[names.current];
  return names.current;
}

void SlotTable::end_read(TileSlot place) {
  CHECK(tiles_[place.tile].reads[place.slot] > 0, "tile ", place.tile, " slot ", place.slot, " is not being read");
  --tiles_[place.tile].reads[place.slot];
}

std::optional<uint32_t> SlotTable::try_begin_write(TileId tile, NewVersion version) {
  Names& names = tiles_[tile];
  CHECK(names.next == kNoSlot, "tile ", tile, " has an unconfirmed update already");
  for (uint32_t slot = 0; slot < slots_; ++slot) {
    if (!is_free(tile, slot, version)) continue;
    names.writing[slot] = true;
    if (version == NewVersion::final) {
      names.current = static_cast<uint8_t>(slot);
    } else {
      names.next = static_cast<uint8_t>(slot);
      unconfirmed_.push_back(tile);
    }
    return slot;
  }
  return std::nullopt;
}

void SlotTable::end_write(TileSlot place) {
  CHECK(is_writing(place), "tile ", place.tile, " slot ", place.slot, " is not being written");
  Names& names = tiles_[place.tile];
  names.writing[place.slot] = false;
  // Nothing begins to be written where a root under way points, so what lands there was counted by seal().
  if (is_sealed_ && names.sealed == place.slot) --landing_;
}

void SlotTable::confirm() {
  for (TileId tile : unconfirmed_) {
    Names& names = tiles_[tile];
    names.current = std::exchange(names.next, kNoSlot);
  }
  unconfirmed_.clear();
}

void SlotTable::discard() {
  for (TileId tile : unconfirmed_) tiles_[tile].next = kNoSlot;
  unconfirmed_.clear();
}

void SlotTable::seal() {
  CHECK(!is_sealed_, "a root is under way already");
  is_sealed_ = true;
  landing_ = 0;
  for (Names& names : tiles_) {
    names.sealed = names.current;
    if (names.writing[names.sealed]) ++landing_;
  }
}

void SlotTable::make_durable() {
  CHECK(is_sealed_, "no root is under way");
  is_sealed_ = false;
  for (Names& names : tiles_) names.durable = names.sealed;
}

}  // namespace penstock
