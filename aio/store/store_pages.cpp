#include "aio/store/store_pages.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace penstock::aio {

StorePages::StorePages(IoEngine& engine, const StoreParts& parts) : parts_(parts) {
  const TableGeometry& geometry = parts.layout.table();
  const uint64_t page_bytes = geometry.page_bytes(), pages = geometry.pages() * parts.layout.page_slots(),
                 first = parts.layout.page_offset(0, 0);
  for (const std::unique_ptr<File>& file : parts.files) {
    std::vector<Status> unread(pages);
    Result<Buffer> all = read_bytes(engine, *file, first, pages * page_bytes);
    if (!all.ok()) {  // perhaps only some of it
      all = Buffer::on_heap(pages * page_bytes);
      for (uint64_t page = 0; page < pages; ++page) {
        Result<Buffer> one = read_bytes(engine, *file, first + page * page_bytes, page_bytes);
        unread[page] = one.status();
        if (one.ok()) std::memcpy(all->data() + page * page_bytes, one->data(), page_bytes);
      }
    }
    drives_.push_back({*std::move(all), std::move(unread)});
  }
}

size_t StorePages::index_of(uint32_t page, uint32_t slot) const {
  const StoreLayout& layout = parts_.layout;
  return (layout.page_offset(page, slot) - layout.page_offset(0, 0)) / layout.table().page_bytes();
}

std::span<const std::byte> StorePages::bytes_of(uint32_t drive, uint32_t page, uint32_t slot) const {
  const size_t index = index_of(page, slot);
  if (!drives_[drive].unread[index].ok()) return {};
  const uint64_t page_bytes = parts_.layout.table().page_bytes();
  return std::span<const std::byte>(drives_[drive].bytes.bytes()).subspan(index * page_bytes, page_bytes);
}

std::string StorePages::name_of(uint32_t drive, uint32_t page) const {
  return text(parts_.files[drive]->path(), ": ", parts_.layout.table().page_name(page));
}

// The copy of the page that the root means: the newest one that is not newer than the root. A drive may still have what
// the slot held before.
Result<std::pair<TablePage, std::span<const std::byte>>> StorePages::find(const RootRecord& root,
                                                                          uint32_t number) const {
  std::optional<std::pair<TablePage, std::span<const std::byte>>> best;
  Status why;
  for (uint32_t drive = 0; drive < drives_.size(); ++drive) {
    const uint32_t slot = root.page_slots[number];
    const std::span<const std::byte> bytes = bytes_of(drive, number, slot);
    if (bytes.empty()) {
      why = drives_[drive].unread[index_of(number, slot)];
      continue;
    }
    Result<TablePage> page = TablePage::decode(bytes, name_of(drive, number));
    if (!page.ok()) {
      why = page.status();
    } else if (page->number != number || page->store != root.store || page->sequence > root.sequence) {
      why = Status(Code::kCorrupt, text(name_of(drive, number), " is stale or misplaced: it holds page ", page->number,
                                        " of root ", page->sequence, ", root ", root.sequence, " or before expected"));
    } else if (!best || best->first.sequence < page->sequence) {
      best = {*page, bytes};
    }
  }
  if (!best) return why;
  return *best;
}

Result<RootContents> StorePages::contents_of(const RootRecord& root) const {
  const StoreLayout& layout = parts_.layout;
  const uint32_t pages = layout.table().pages();
  if (root.page_slots.size() != pages || std::any_of(root.page_slots.begin(), root.page_slots.end(),
                                                     [&](uint8_t s) { return s >= layout.page_slots(); })) {
    return Status(Code::kCorrupt, text("root ", root.sequence, " names pages that do not exist"));
  }
  RootContents contents{TileTable(layout.shared_table()), root.payload(), {}, {}};
  for (uint32_t number = 0; number < pages; ++number) {
    PENSTOCK_TRY_ASSIGN(page, find(root, number));
    PENSTOCK_TRY(contents.table.set_page_words(number, page.first.words));
    contents.page_hashes.push_back(TablePage::hash_of(page.second));
    contents.pages.push_back(page.second);
  }
  if (pages_digest(contents.page_hashes) != root.pages_digest) {
    return Status(Code::kCorrupt,
                  text("root ", root.sequence,
                       ": a page of its table is stale or misplaced: the checksum over all of them differs"));
  }
  PENSTOCK_TRY(decode_state(contents.table.state(), layout.table().state_capacity(), contents.payload));
  for (TileId tile = 0; tile < parts_.shape.tiles.size(); ++tile) {
    if (contents.table.slot(tile) >= layout.slots_of(tile)) {
      return Status(Code::kCorrupt, text("root ", root.sequence, " names slot ", contents.table.slot(tile), " of tile ",
                                         tile, ", which has ", layout.slots_of(tile)));
    }
  }
  return contents;
}

Status StorePages::unread_page_of(const RootRecord& root) const {
  const StoreLayout& layout = parts_.layout;
  for (uint32_t number = 0; number < root.page_slots.size() && number < layout.table().pages(); ++number) {
    if (root.page_slots[number] >= layout.page_slots()) continue;
    for (const DrivePages& drive : drives_) {
      const Status& unread = drive.unread[index_of(number, root.page_slots[number])];
      if (!unread.ok()) return unread.within(text("step ", root.step, ": ", layout.table().page_name(number)));
    }
  }
  return Status();
}

std::string StorePages::sign_of_lost_writes(const RootRecord& root, const RootContents& contents, uint32_t drive,
                                            bool drive_has_root) const {
  for (uint32_t number = 0; number < contents.pages.size(); ++number) {
    const std::span<const std::byte> meant = contents.pages[number];
    const std::span<const std::byte> bytes = bytes_of(drive, number, root.page_slots[number]);
    if (bytes.empty() || std::equal(bytes.begin(), bytes.end(), meant.begin())) continue;
    const std::string name = name_of(drive, number);
    const Result<TablePage> page = TablePage::decode(bytes, name);
    if (page.ok() && page->store == root.store) return name + ": older than on another drive";
    if (!drive_has_root) return name + ": missing, and so is the root that names it";
  }
  return "";
}

std::optional<TablePage> StorePages::newest_after(uint64_t sequence) const {
  const uint64_t page_bytes = parts_.layout.table().page_bytes();
  std::optional<TablePage> newest;
  for (const DrivePages& drive : drives_) {
    for (size_t index = 0; index < drive.unread.size(); ++index) {
      if (!drive.unread[index].ok()) continue;
      Result<TablePage> page = TablePage::decode(drive.bytes.bytes().subspan(index * page_bytes, page_bytes), "");
      if (!page.ok() || page->store != parts_.header.store || page->sequence <= sequence) continue;
      sequence = page->sequence;
      newest = *std::move(page);
    }
  }
  return newest;
}

void StorePages::repair(const RootRecord& root, const RootContents& contents, Repairs& repairs) const {
  for (uint32_t number = 0; number < contents.pages.size(); ++number) {
    for (uint32_t drive = 0; drive < drives_.size(); ++drive) {
      const std::span<const std::byte> bytes = bytes_of(drive, number, root.page_slots[number]);
      const std::span<const std::byte> meant = contents.pages[number];
      if (std::equal(bytes.begin(), bytes.end(), meant.begin(), meant.end())) continue;
      repairs.add(drive, parts_.layout.page_offset(number, root.page_slots[number]), {meant.begin(), meant.end()},
                  name_of(drive, number));
    }
  }
}

}  // namespace penstock::aio
