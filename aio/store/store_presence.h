// What there is of a store in its folders, told from its files' headers alone. One whose making was cut short has
// nothing to lose, and may be made anew.
#pragma once

#include <span>

#include "aio/store/tile_store.h"

namespace penstock::aio {

// What a store's file is called until its header says that it is being made. Nobody opens it, and the next that is made
// there removes it.
std::string unnamed_file(const std::string& store_file);

struct StorePresence {
  // half_made: its making began and never ended. there: whole, damaged, or without anything that says what it is.
  enum class Kind : uint8_t { none, half_made, there } kind = Kind::none;
  StoreId id{};  // zeros where no header says it

  bool operator==(const StorePresence&) const = default;
};

// Of the file on each drive that has one; null where it cannot be opened because it was cut short.
StorePresence presence_of(IoEngine& engine, std::span<const File* const> files);
// Refused while another process uses it.
Result<StorePresence> find_store(IoEngine& engine, DriveFolders folders, uint32_t rank);
// Of one that was just made, and could not be made whole. One whose headers say another id is left alone: another run
// has made its own there meanwhile.
Status remove_store(IoEngine& engine, DriveFolders folders, uint32_t rank, const StoreId& id);

// Of the stores of several ranks, or of one: whether their making was cut short, so that none of them was ever opened.
// Those that are there are then of the same making.
bool is_half_made(std::span<const StorePresence> of_ranks);

}  // namespace penstock::aio
