// The table says for every tile which slot is meant and the checksum of each of its blocks. It is a flat run of 64-bit
// words, tile after tile (the slot, then the checksums). Behind it, beginning on a page of its own, come the words of
// the run's state. All of it is cut into pages that are written anew, to another slot of their own, when a word of
// theirs has changed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tiering/store/root_payload.h"
#include "tiering/store/store_record.h"
#include "tiering/store/store_shape.h"

namespace penstock {

// How many pages there are, how long they are, and where a tile's words begin.
class TableGeometry {
 public:
  explicit TableGeometry(const StoreShape& shape, StateCapacity capacity = {});

  // Those of the table come first, those of the state follow.
  uint32_t pages() const { return table_pages_ + state_pages_; }
  uint32_t table_pages() const { return table_pages_; }
  uint64_t page_bytes() const { return page_bytes_; }
  uint64_t words_per_page() const;
  // "table page 3" or "state page 0".
  std::string page_name(uint32_t page) const;

  // Of the table alone; of all pages, the rest of the table's last one included.
  uint64_t words() const { return first_word_.back(); }
  uint64_t all_words() const { return first_state_word() + state_words_; }
  uint64_t first_state_word() const { return table_pages_ * words_per_page(); }
  const StateCapacity& state_capacity() const { return capacity_; }

  uint64_t first_word(TileId tile) const { return first_word_[tile]; }
  uint64_t checksums(TileId tile) const { return first_word_[tile + 1] - first_word_[tile] - 1; }
  uint32_t first_page(TileId tile) const { return page_of(first_word_[tile]); }
  uint32_t last_page(TileId tile) const { return page_of(first_word_[tile + 1] - 1); }

 private:
  uint32_t page_of(uint64_t word) const { return static_cast<uint32_t>(word / words_per_page()); }

  const StateCapacity capacity_;
  const uint64_t state_words_;
  std::vector<uint64_t> first_word_;
  uint64_t page_bytes_ = 0;
  uint32_t table_pages_ = 0;
  uint32_t state_pages_ = 0;
};

// What one root says about every tile and about the run.
class TileTable {
 public:
  explicit TileTable(std::shared_ptr<const TableGeometry> geometry)
      : geometry_(std::move(geometry)), words_(geometry_->all_words(), 0) {}

  uint64_t slot(TileId tile) const { return words_[geometry_->first_word(tile)]; }
  std::span<const uint64_t> checksums(TileId tile) const {
    return std::span(words_).subspan(geometry_->first_word(tile) + 1, geometry_->checksums(tile));
  }
  // REQUIRES: as many checksums as the tile has.
  void set(TileId tile, uint32_t slot, std::span<const uint64_t> checksums);
  void set_checksum(TileId tile, uint64_t number, uint64_t checksum);

  // As encode_state() makes them. Returns the pages in which a word has changed.
  std::vector<uint32_t> set_state(std::span<const uint64_t> words);
  std::span<const uint64_t> state() const { return std::span(words_).subspan(geometry_->first_state_word()); }

  std::span<const uint64_t> page_words(uint32_t page) const;
  // Refuses another number of words than the page has.
  Status set_page_words(uint32_t page, std::span<const uint64_t> words);

 private:
  std::shared_ptr<const TableGeometry> geometry_;
  std::vector<uint64_t> words_;
};

// One page as it lies on a drive. Its hash covers store, page number and the root that wrote it, so an older version of
// the page, another page or another store's is not taken for it.
struct TablePage {
  StoreId store{};
  uint32_t number = 0;
  // Of the root that wrote it. The step tells what was lost where that root is not there.
  uint64_t sequence = 0;
  uint64_t step = 0;
  std::vector<uint64_t> words;

  std::vector<std::byte> encode(uint64_t page_bytes) const;
  static Result<TablePage> decode(std::span<const std::byte> page, const std::string& what);
  // What the root's pages_digest is made of.
  static uint64_t hash_of(std::span<const std::byte> page);
};

// Of all pages' hashes, in order.
uint64_t pages_digest(std::span<const uint64_t> page_hashes);

}  // namespace penstock
