#include "aio/store_recover.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "aio/tile_chunks.h"
#include "tiering/check.h"

namespace penstock::aio {
namespace {

constexpr uint64_t kVerifyBytes = 8 * kChunkBytes;

// One of the places where a root may lie.
struct RootCopy {
  uint32_t drive;
  uint32_t place;
  std::optional<RootRecord> root;
  std::string why;  // there is none
  Status unread;    // the drive's refusal, where that is why
};

std::vector<RootCopy> read_root_copies(IoEngine& engine, const StoreParts& parts) {
  std::vector<RootCopy> copies;
  for (uint32_t drive = 0; drive < parts.files.size(); ++drive) {
    for (uint32_t place = 0; place < 2; ++place) {
      const File& file = *parts.files[drive];
      const std::string what = text(file.path(), ": root ", place);
      RootCopy copy{drive, place, std::nullopt, {}, {}};
      Result<Buffer> bytes = read_bytes(engine, file, StoreLayout::root_offset(place), kRecordBytes);
      copy.unread = bytes.status();
      Result<RootRecord> root = bytes.ok() ? RootRecord::decode(bytes->bytes(), what) : bytes.status();
      if (!root.ok()) {
        copy.why = root.status().message();
      } else if (root->store != parts.header.store || root->shape_digest != parts.header.shape_digest) {
        copy.why = what + ": another store's";
      } else {
        copy.root = *root;
      }
      copies.push_back(std::move(copy));
    }
  }
  return copies;
}

// Every root that some drive has, newest first.
std::vector<RootRecord> candidates_of(const std::vector<RootCopy>& copies) {
  std::vector<RootRecord> roots;
  for (const RootCopy& copy : copies) {
    if (copy.root && std::find(roots.begin(), roots.end(), *copy.root) == roots.end()) roots.push_back(*copy.root);
  }
  std::stable_sort(roots.begin(), roots.end(),
                   [](const RootRecord& a, const RootRecord& b) { return a.sequence > b.sequence; });
  return roots;
}

// The drive may answer at the next try; what it has not said by now is no reason to believe an older step, since going
// on from there gives up the newer one. `drives` have the root of that place, or may have it.
Status wait_for_drive(const Status& unread, const StoreFiles& files, const std::vector<uint32_t>& drives,
                      uint32_t place) {
  std::string commands;
  for (uint32_t drive : drives) {
    commands += text(commands.empty() ? "" : " && ", "dd if=/dev/zero of=", files[drive]->path(), " bs=", kRecordBytes,
                     " count=1 seek=", StoreLayout::root_offset(place) / kRecordBytes, " conv=notrunc");
  }
  return Status(unread.code(), unread.message(),
                "open it again when the drive is back; where it can never be read again, give the root up, and the "
                "step before is looked for: " +
                    commands);
}

// What a drive that could not be read may hold is neither lost nor old: where no other drive has the root of that
// place, it may be the newest. A root that was read and has rotted is gone for good, which is another matter.
Status newest_may_be_unread(const std::vector<RootCopy>& copies, const StoreFiles& files) {
  for (const RootCopy& copy : copies) {
    const bool elsewhere = std::any_of(copies.begin(), copies.end(), [&](const RootCopy& other) {
      return other.place == copy.place && other.root.has_value();
    });
    if (copy.unread.ok() || elsewhere) continue;
    return wait_for_drive(copy.unread.within(text("root ", copy.place)), files, {copy.drive}, copy.place);
  }
  return Status();
}

uint32_t place_of(const RootRecord& root) { return static_cast<uint32_t>(root.sequence % 2); }

std::vector<uint32_t> drives_with(const std::vector<RootCopy>& copies, const RootRecord& root) {
  std::vector<uint32_t> drives;
  for (const RootCopy& copy : copies) {
    const bool may_have_it = copy.place == place_of(root) && (!copy.unread.ok() || copy.root == root);
    if (may_have_it) drives.push_back(copy.drive);
  }
  return drives;
}

// Why the newest root that was found may not be the newest that was acknowledged, or may not fit the tiles. Empty if a
// crash at any moment explains what was found.
std::string doubt_about(const std::vector<RootCopy>& copies, const std::vector<RootRecord>& roots, uint32_t drives) {
  const uint64_t newest = roots.front().sequence;
  for (const RootCopy& copy : copies) {
    if (!copy.root && copy.place != newest % 2) return copy.why;
  }
  if (roots.size() > 1 && roots[1].sequence == newest) return text("two different roots of number ", newest);
  for (uint32_t drive = 0; drive < drives; ++drive) {
    bool stale = std::all_of(copies.begin(), copies.end(), [&](const RootCopy& copy) {
      return copy.drive != drive || (copy.root && copy.root->sequence + 1 < newest);
    });
    if (stale) return text("drive ", drive, " has older roots than the others");
  }
  return "";
}

// The table pages of every drive, as they lie.
using PageAreas = std::vector<Result<Buffer>>;

PageAreas read_page_areas(IoEngine& engine, const StoreParts& parts) {
  const TableGeometry& geometry = parts.layout.table();
  const uint64_t area_bytes = geometry.pages() * geometry.page_bytes() * parts.layout.page_slots();
  PageAreas areas;
  for (const std::unique_ptr<File>& file : parts.files) {
    areas.push_back(read_bytes(engine, *file, parts.layout.page_offset(0, 0), area_bytes));
  }
  return areas;
}

// As of a root: a page that is missed may be where a drive could not be read.
Status pages_may_be_unread(const PageAreas& areas) {
  for (const Result<Buffer>& area : areas) {
    if (!area.ok()) return area.status().within("table pages");
  }
  return Status();
}

std::span<const std::byte> page_bytes_in(const PageAreas& areas, uint32_t drive, const StoreLayout& layout,
                                         uint32_t page, uint32_t slot) {
  if (!areas[drive].ok()) return {};
  uint64_t at = layout.page_offset(page, slot) - layout.page_offset(0, 0);
  return std::span<const std::byte>(areas[drive]->bytes()).subspan(at, layout.table().page_bytes());
}

// A root with everything that it names but the tiles.
struct Loaded {
  TileTable table;
  std::vector<uint64_t> page_checksums;
  std::vector<std::span<const std::byte>> pages;
};

// The copy of the page that the root means: of those that can be read the newest that the root can know, since a drive
// may still have what the slot held before.
Result<std::pair<TablePage, std::span<const std::byte>>> find_page(const StoreParts& parts, const RootRecord& root,
                                                                   const PageAreas& areas, uint32_t number) {
  std::optional<std::pair<TablePage, std::span<const std::byte>>> best;
  Status why;
  for (uint32_t drive = 0; drive < parts.files.size(); ++drive) {
    std::span<const std::byte> bytes = page_bytes_in(areas, drive, parts.layout, number, root.page_slots[number]);
    if (bytes.empty()) {
      why = areas[drive].status();
      continue;
    }
    Result<TablePage> page = TablePage::decode(bytes, text(parts.files[drive]->path(), ": table page ", number));
    if (!page.ok()) {
      why = page.status();
    } else if (page->number != number || page->store != root.store || page->sequence > root.sequence) {
      why = Status(Code::kCorrupt, text(parts.files[drive]->path(), ": table page ", number, ": not the one meant"));
    } else if (!best || best->first.sequence < page->sequence) {
      best = {*page, bytes};
    }
  }
  if (!best) return why;
  return *best;
}

Result<Loaded> load(const StoreParts& parts, const RootRecord& root, const PageAreas& areas) {
  const StoreLayout& layout = parts.layout;
  const uint32_t pages = layout.table().pages();
  if (root.page_slots.size() != pages || std::any_of(root.page_slots.begin(), root.page_slots.end(),
                                                     [&](uint8_t s) { return s >= layout.page_slots(); })) {
    return Status(Code::kCorrupt, text("root ", root.sequence, " names table pages that do not exist"));
  }
  Loaded loaded{TileTable(layout.shared_table()), {}, {}};
  for (uint32_t number = 0; number < pages; ++number) {
    PENSTOCK_TRY_ASSIGN(page, find_page(parts, root, areas, number));
    PENSTOCK_TRY(loaded.table.set_page_words(number, page.first.words));
    loaded.page_checksums.push_back(TablePage::checksum_of(page.second));
    loaded.pages.push_back(page.second);
  }
  if (table_digest(loaded.page_checksums) != root.table_digest) {
    return Status(Code::kCorrupt, text("root ", root.sequence, ": its table pages are not those it was written with"));
  }
  for (TileId tile = 0; tile < parts.shape.tiles.size(); ++tile) {
    if (loaded.table.slot(tile) >= layout.slots_of(tile)) {
      return Status(Code::kCorrupt,
                    text("root ", root.sequence, " names slot ", loaded.table.slot(tile), " of tile ", tile));
    }
  }
  return loaded;
}

Status verify_all(IoEngine& engine, const StoreParts& parts, const TileTable& table, ChecksumFunction checksum,
                  uint64_t step) {
  Buffer memory = Buffer::on_heap(kVerifyBytes);
  PENSTOCK_TRY_ASSIGN(report, verify_tiles(engine, parts, table, checksum, memory.bytes()));
  if (report.bad.empty()) return Status();
  // One that was read and is not what it was settles the matter, whatever else could not be read.
  auto worst = std::find_if(report.bad.begin(), report.bad.end(), [](const BadBlock& bad) { return bad.unread.ok(); });
  const BadBlock& first = worst != report.bad.end() ? *worst : report.bad.front();
  if (!first.unread.ok()) return first.unread.within(text("step ", step, ": ", first.tensor));
  return Status(Code::kCorrupt, text("step ", step, ": ", report.bad.size(), " of ", report.blocks,
                                     " blocks are not what they were, the first at ", first.offset_bytes, " of ",
                                     first.file, ": ", first.tensor));
}

void repair_pages(const StoreParts& parts, const RootRecord& root, const Loaded& loaded, const PageAreas& areas,
                  Repairs& repairs) {
  for (uint32_t number = 0; number < loaded.pages.size(); ++number) {
    for (uint32_t drive = 0; drive < parts.files.size(); ++drive) {
      std::span<const std::byte> bytes = page_bytes_in(areas, drive, parts.layout, number, root.page_slots[number]);
      std::span<const std::byte> meant = loaded.pages[number];
      if (std::equal(bytes.begin(), bytes.end(), meant.begin(), meant.end())) continue;
      repairs.add(drive, parts.layout.page_offset(number, root.page_slots[number]), {meant.begin(), meant.end()},
                  text(parts.files[drive]->path(), ": table page ", number));
    }
  }
}

// Its own place has the root on every drive; the other place has an older one, or the root again, so that nothing that
// was not believed is found there later.
void repair_roots(const std::vector<RootCopy>& copies, const RootRecord& root, Repairs& repairs) {
  for (const RootCopy& copy : copies) {
    bool own_place = copy.place == place_of(root);
    bool good = copy.root && (*copy.root == root || (!own_place && copy.root->sequence < root.sequence));
    if (good) continue;
    repairs.add_root(copy.drive, StoreLayout::root_offset(copy.place), root.encode());
    if (!copy.root) repairs.note(copy.why + "; another is good");
  }
}

Status torn(const RootRecord& root) {
  return Status(Code::kCorrupt,
                text("the run ended inside the step after ", root.payload.step,
                     ", which was overwriting the only copy of its state (space: single)"),
                "make the store anew with --force; `space: double` survives this");
}

}  // namespace

void Repairs::add(uint32_t drive, uint64_t offset_bytes, std::vector<std::byte> bytes, const std::string& what) {
  repairs_.push_back({drive, offset_bytes, std::move(bytes)});
  notes_.push_back(what + ": not what its mirror says");
}

void Repairs::add_root(uint32_t drive, uint64_t offset_bytes, std::vector<std::byte> bytes) {
  roots_.push_back({drive, offset_bytes, std::move(bytes)});
}

Status Repairs::compare_copies(IoEngine& engine, const StoreFiles& files, uint64_t offset_bytes,
                               std::span<const std::byte> expected, const std::string& what) {
  for (uint32_t drive = 0; drive < files.size(); ++drive) {
    Result<Buffer> bytes = read_bytes(engine, *files[drive], offset_bytes, expected.size());
    bool same = bytes.ok() && std::equal(expected.begin(), expected.end(), bytes->bytes().begin());
    if (!same) add(drive, offset_bytes, {expected.begin(), expected.end()}, files[drive]->path() + ": " + what);
  }
  return Status();
}

Status Repairs::carry_out(IoEngine& engine, const StoreFiles& files) const {
  for (const std::vector<Repair>* stage : {&repairs_, &roots_}) {
    for (const Repair& repair : *stage) {
      PENSTOCK_TRY(write_bytes(engine, *files[repair.drive], repair.offset_bytes, repair.bytes));
    }
    PENSTOCK_TRY(flush_all(engine, files));
  }
  return Status();
}

Status recover_root(IoEngine& engine, StoreParts& parts, const OpenOptions& options, Repairs& repairs) {
  const std::vector<RootCopy> copies = read_root_copies(engine, parts);
  const std::vector<RootRecord> roots = candidates_of(copies);
  const std::string where = parts.files.front()->path();
  const bool runs = options.access == OpenOptions::Access::run;
  if (runs) PENSTOCK_TRY(newest_may_be_unread(copies, parts.files));
  if (roots.empty()) {
    return Status(Code::kCorrupt, text(where, ": no root can be read on any drive: ", copies.front().why),
                  "restore the store from an export, or make it anew with --force");
  }
  const PageAreas areas = read_page_areas(engine, parts);
  std::string doubt = doubt_about(copies, roots, static_cast<uint32_t>(parts.files.size()));
  Status first_refusal;
  for (const RootRecord& root : roots) {
    Result<Loaded> loaded = load(parts, root, areas);
    Status refusal = loaded.status();
    const Status unread = loaded.ok() ? Status() : pages_may_be_unread(areas);
    if (!unread.ok() && runs) return wait_for_drive(unread, parts.files, drives_with(copies, root), place_of(root));
    if (root.state == RootRecord::State::torn && runs) return torn(root).within(where);
    if (refusal.ok() && !doubt.empty() && !runs) {
      repairs.note(text(doubt, ": step ", root.payload.step, " may not be the last, and has not been verified"));
    } else if (refusal.ok() && !doubt.empty()) {
      refusal = verify_all(engine, parts, loaded->table, options.checksum, root.payload.step);
      if (!refusal.ok() && refusal.code() != Code::kCorrupt) {
        return wait_for_drive(refusal, parts.files, drives_with(copies, root), place_of(root));
      }
      if (refusal.ok()) repairs.note(text(doubt, ": every block of step ", root.payload.step, " was verified"));
    }
    if (refusal.ok()) {
      repair_pages(parts, root, *loaded, areas, repairs);
      repair_roots(copies, root, repairs);
      parts.root = root;
      parts.table = std::move(loaded->table);
      parts.page_checksums = std::move(loaded->page_checksums);
      return Status();
    }
    if (first_refusal.ok()) first_refusal = refusal;
    doubt = refusal.message();
  }
  return Status(Code::kCorrupt, text(where, ": no step can be recovered: ", first_refusal.message()),
                "`penstock checkpoint scrub` names every bad block; restore from an export");
}

}  // namespace penstock::aio
