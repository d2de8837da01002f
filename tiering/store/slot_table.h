// SlotTable knows what each slot of every tile holds, and so which slot may be written next.
//
// One rule is the crash proof: a slot is free when no durable root, no root under way, no unconfirmed update and no I/O
// in flight names it. While an update is unconfirmed, the version that readers see is kept too, because a
// discard returns to it.
//
// Pure: it moves no bytes and knows no files. The pages of table and state have a SlotTable of their own.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "tiering/status.h"
#include "tiering/tile_map.h"

namespace penstock {

constexpr uint32_t kSlotsMax = 4;

struct TileSlot {
  TileId tile = 0;
  uint32_t slot = 0;
  bool operator==(const TileSlot&) const = default;
};

// unconfirmed: becomes current by confirm(), or is dropped by discard(). final: is current at once.
enum class NewVersion : uint8_t { unconfirmed, final };

class SlotTable {
 public:
  // Every tile begins with the slot that the durable root names for it. A table of one slot per tile overwrites in
  // place, and only while allow_in_place() holds.
  SlotTable(std::vector<uint8_t> durable_slots, uint32_t slots);

  uint32_t tiles() const { return static_cast<uint32_t>(tiles_.size()); }
  uint32_t slots() const { return slots_; }

  uint32_t current(TileId tile) const { return tiles_[tile].current; }
  uint32_t durable(TileId tile) const { return tiles_[tile].durable; }
  // The slot that the root under way names; the durable slot if none is under way.
  uint32_t sealed(TileId tile) const { return tiles_[tile].sealed; }
  bool is_free(TileId tile, uint32_t slot, NewVersion version) const;

  // The slot of the current version; nothing while it is still being written.
  std::optional<uint32_t> try_begin_read(TileId tile);
  void end_read(TileSlot place);

  // A slot for the next version; nothing while none is free.
  std::optional<uint32_t> try_begin_write(TileId tile, NewVersion version);
  // The I/O has ended, well or not. Which slots are current, sealed and durable does not change.
  void end_write(TileSlot place);
  bool is_writing(TileSlot place) const { return tiles_[place.tile].writing[place.slot]; }
  // Whether the slot holds the tile's unconfirmed update.
  bool is_unconfirmed(TileSlot place) const { return tiles_[place.tile].next == place.slot; }

  void confirm();
  void discard();

  // The root under way names the current version of every tile; then that root is the durable one.
  // REQUIRES of seal(): no root under way.
  void seal();
  void make_durable();
  // How many slots that the root under way names are still being written.
  uint32_t landing() const { return landing_; }

  // Whether the only slot of a tile may be overwritten: only while the durable root says that it may be torn.
  void allow_in_place(bool allowed) { in_place_allowed_ = allowed; }

 private:
  static constexpr uint8_t kNoSlot = 0xff;
  struct Names {
    uint8_t durable;
    uint8_t sealed;
    uint8_t current;
    uint8_t next = kNoSlot;
    std::array<bool, kSlotsMax> writing{};
    std::array<uint16_t, kSlotsMax> reads{};
  };

  const uint32_t slots_;
  std::vector<Names> tiles_;
  std::vector<TileId> unconfirmed_;
  bool is_sealed_ = false;
  uint32_t landing_ = 0;
  bool in_place_allowed_ = false;
};

}  // namespace penstock
