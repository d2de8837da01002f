#include "tiering/store/table_page.h"

#include <algorithm>
#include <cstring>

#include "tiering/store/root_record.h"
#include "tiering/store/store_hash.h"

namespace penstock {
namespace {

constexpr uint64_t kPageMagic = 0x3145474150544b50;  // "PKTPAGE1"
constexpr uint64_t kFieldBytes = 64;                 // before the words; the last eight bytes are the hash

uint64_t words_of(uint64_t page_bytes) { return (page_bytes - kFieldBytes) / sizeof(uint64_t) - 1; }

}  // namespace

TableGeometry::TableGeometry(const StoreShape& shape, StateCapacity capacity)
    : capacity_(capacity), state_words_(state_word_count(capacity)) {
  first_word_.reserve(shape.tiles.size() + 1);
  first_word_.push_back(0);
  for (TileId tile = 0; tile < shape.tiles.size(); ++tile) {
    first_word_.push_back(first_word_.back() + 1 + checksum_count(shape, tile));
  }
  const auto pages_for = [this](uint64_t words) { return ceil_div(words, words_of(page_bytes_)); };
  for (page_bytes_ = kAlignmentBytes; pages_for(words()) + pages_for(state_words_) > kPagesMax;) page_bytes_ *= 2;
  table_pages_ = static_cast<uint32_t>(pages_for(words()));
  state_pages_ = static_cast<uint32_t>(pages_for(state_words_));
}

uint64_t TableGeometry::words_per_page() const { return words_of(page_bytes_); }

std::string TableGeometry::page_name(uint32_t page) const {
  return page < table_pages_ ? text("table page ", page) : text("state page ", page - table_pages_);
}

void TileTable::set(TileId tile, uint32_t slot, std::span<const uint64_t> checksums) {
  CHECK(checksums.size() == geometry_->checksums(tile), "tile ", tile, " has ", geometry_->checksums(tile),
        " checksums, not ", checksums.size());
  uint64_t first = geometry_->first_word(tile);
  words_[first] = slot;
  std::copy(checksums.begin(), checksums.end(), words_.begin() + static_cast<ptrdiff_t>(first) + 1);
}

void TileTable::set_checksum(TileId tile, uint64_t number, uint64_t checksum) {
  CHECK(number < geometry_->checksums(tile));
  words_[geometry_->first_word(tile) + 1 + number] = checksum;
}

std::vector<uint32_t> TileTable::set_state(std::span<const uint64_t> words) {
  CHECK(words.size() == state().size(), words.size(), " words of state, not ", state().size());
  std::vector<uint32_t> changed;
  const uint64_t per_page = geometry_->words_per_page();
  for (uint64_t at = 0; at < words.size(); at += per_page) {
    const std::span<const uint64_t> now = words.subspan(at, std::min(per_page, words.size() - at));
    const auto place = words_.begin() + static_cast<ptrdiff_t>(geometry_->first_state_word() + at);
    if (std::equal(now.begin(), now.end(), place)) continue;
    std::copy(now.begin(), now.end(), place);
    changed.push_back(geometry_->table_pages() + static_cast<uint32_t>(at / per_page));
  }
  return changed;
}

std::span<const uint64_t> TileTable::page_words(uint32_t page) const {
  const uint64_t first = page * geometry_->words_per_page();
  const uint64_t end = page < geometry_->table_pages() ? geometry_->words() : geometry_->all_words();
  return std::span(words_).subspan(first, std::min(geometry_->words_per_page(), end - first));
}

Status TileTable::set_page_words(uint32_t page, std::span<const uint64_t> words) {
  if (words.size() != page_words(page).size()) {
    return Status(Code::kCorrupt,
                  text(geometry_->page_name(page), ": ", words.size(), " words, not ", page_words(page).size()));
  }
  std::copy(words.begin(), words.end(), words_.begin() + static_cast<ptrdiff_t>(page * geometry_->words_per_page()));
  return Status();
}

std::vector<std::byte> TablePage::encode(uint64_t page_bytes) const {
  ByteWriter out;
  out.put(kPageMagic);
  out.put(kStoreFormat);
  out.put(number);
  put(out, store);
  out.put(sequence);
  out.put(step);
  out.put(static_cast<uint32_t>(words.size()));
  out.pad_to(kFieldBytes);
  CHECK(words.size() <= words_of(page_bytes));
  out.put_bytes(std::as_bytes(std::span(words)));
  out.pad_to(page_bytes - sizeof(uint64_t));
  out.put(store_hash(out.bytes(), kPageMagic));
  return out.take();
}

Result<TablePage> TablePage::decode(std::span<const std::byte> page, const std::string& what) {
  if (page.empty() || page.size() % kAlignmentBytes != 0) {
    return Status(Code::kCorrupt,
                  text(what, ": ", page.size(), " B, a positive multiple of ", kAlignmentBytes, " B expected"));
  }
  if (store_hash(page.first(page.size() - sizeof(uint64_t)), kPageMagic) != hash_of(page)) {
    return Status(Code::kCorrupt, what + ": its checksum does not match");
  }
  ByteReader in(page);
  TablePage found;
  uint64_t magic = in.get<uint64_t>();
  uint32_t format = in.get<uint32_t>();
  found.number = in.get<uint32_t>();
  found.store = get_store_id(in);
  found.sequence = in.get<uint64_t>();
  found.step = in.get<uint64_t>();
  uint32_t words = in.get<uint32_t>();
  if (magic != kPageMagic || format != kStoreFormat || words > words_of(page.size())) {
    return Status(Code::kCorrupt, what + ": a page with invalid fields");
  }
  found.words.resize(words);
  if (words > 0) std::memcpy(found.words.data(), page.data() + kFieldBytes, words * sizeof(uint64_t));
  return found;
}

uint64_t TablePage::hash_of(std::span<const std::byte> page) {
  return ByteReader(page.last(sizeof(uint64_t))).get<uint64_t>();
}

uint64_t pages_digest(std::span<const uint64_t> page_hashes) {
  return store_hash(std::as_bytes(page_hashes), kPageMagic);
}

}  // namespace penstock
