#include "aio/store/store_recover.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "aio/store/tile_chunks.h"
#include "tiering/check.h"

namespace penstock::aio {
namespace {

constexpr uint64_t kVerifyBytes = kChunksUnderWay * kChunkBytes;

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

// What a drive that could not be read may hold is neither lost nor old: unless another drive has the newest root in
// that place, it may be newer still. If all others have an older one there, it was never acknowledged: all would have
// it.
Status newest_may_be_unread(const std::vector<RootCopy>& copies, const std::vector<RootRecord>& roots,
                            const StoreFiles& files) {
  for (const RootCopy& copy : copies) {
    bool newest = false, older = false, rotten = false;
    for (const RootCopy& other : copies) {
      if (other.place != copy.place || !other.unread.ok()) continue;
      newest |= !roots.empty() && other.root == roots.front();
      older |= other.root.has_value();
      rotten |= !other.root.has_value();
    }
    if (copy.unread.ok() || newest || (older && !rotten)) continue;
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

// Why the newest root that was found may not be the newest that was acknowledged, or may not fit the tiles, as far as
// the roots tell. Empty if a crash at any moment explains what was found.
std::string doubt_about_roots(const std::vector<RootCopy>& copies, const std::vector<RootRecord>& roots,
                              uint32_t drives) {
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

// All pages of one drive, in all their slots, as they lie.
struct PageArea {
  Buffer bytes;
  std::vector<Status> unread;  // by page and slot: the drive's refusal
};
using PageAreas = std::vector<PageArea>;

size_t index_of(const StoreLayout& layout, uint32_t page, uint32_t slot) {
  return (layout.page_offset(page, slot) - layout.page_offset(0, 0)) / layout.table().page_bytes();
}

PageAreas read_page_areas(IoEngine& engine, const StoreParts& parts) {
  const TableGeometry& geometry = parts.layout.table();
  const uint64_t page_bytes = geometry.page_bytes(), pages = geometry.pages() * parts.layout.page_slots(),
                 first = parts.layout.page_offset(0, 0);
  PageAreas areas;
  for (const std::unique_ptr<File>& file : parts.files) {
    std::vector<Status> unread(pages);
    Result<Buffer> all = read_bytes(engine, *file, first, pages * page_bytes);
    if (!all.ok()) {  // not all of it need be unreadable
      all = Buffer::on_heap(pages * page_bytes);
      for (uint64_t page = 0; page < pages; ++page) {
        Result<Buffer> one = read_bytes(engine, *file, first + page * page_bytes, page_bytes);
        unread[page] = one.status();
        if (one.ok()) std::memcpy(all->data() + page * page_bytes, one->data(), page_bytes);
      }
    }
    areas.push_back({*std::move(all), std::move(unread)});
  }
  return areas;
}

// As of a root: a page that is missed may be where a drive could not be read.
Status pages_may_be_unread(const StoreParts& parts, const RootRecord& root, const PageAreas& areas) {
  for (uint32_t number = 0; number < root.page_slots.size() && number < parts.layout.table().pages(); ++number) {
    if (root.page_slots[number] >= parts.layout.page_slots()) continue;
    for (const PageArea& area : areas) {
      const Status& unread = area.unread[index_of(parts.layout, number, root.page_slots[number])];
      if (!unread.ok()) return unread.within(text("step ", root.step, ": ", parts.layout.table().page_name(number)));
    }
  }
  return Status();
}

// Nothing where it could not be read.
std::span<const std::byte> page_bytes_in(const PageArea& area, const StoreLayout& layout, uint32_t page,
                                         uint32_t slot) {
  const size_t index = index_of(layout, page, slot);
  if (!area.unread[index].ok()) return {};
  const uint64_t page_bytes = layout.table().page_bytes();
  return std::span<const std::byte>(area.bytes.bytes()).subspan(index * page_bytes, page_bytes);
}

// A root with everything that it names but the tiles.
struct Loaded {
  TileTable table;
  RootPayload payload;
  std::vector<uint64_t> page_hashes;
  std::vector<std::span<const std::byte>> pages;
};

// The copy of the page that the root means: of those that can be read the newest that the root can know, since a drive
// may still have what the slot held before.
Result<std::pair<TablePage, std::span<const std::byte>>> find_page(const StoreParts& parts, const RootRecord& root,
                                                                   const PageAreas& areas, uint32_t number) {
  std::optional<std::pair<TablePage, std::span<const std::byte>>> best;
  Status why;
  for (uint32_t drive = 0; drive < parts.files.size(); ++drive) {
    const uint32_t slot = root.page_slots[number];
    std::span<const std::byte> bytes = page_bytes_in(areas[drive], parts.layout, number, slot);
    if (bytes.empty()) {
      why = areas[drive].unread[index_of(parts.layout, number, slot)];
      continue;
    }
    const std::string what = text(parts.files[drive]->path(), ": ", parts.layout.table().page_name(number));
    Result<TablePage> page = TablePage::decode(bytes, what);
    if (!page.ok()) {
      why = page.status();
    } else if (page->number != number || page->store != root.store || page->sequence > root.sequence) {
      why = Status(Code::kCorrupt, what + ": another page is there");
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
    return Status(Code::kCorrupt, text("root ", root.sequence, " names pages that do not exist"));
  }
  Loaded loaded{TileTable(layout.shared_table()), root.payload(), {}, {}};
  for (uint32_t number = 0; number < pages; ++number) {
    PENSTOCK_TRY_ASSIGN(page, find_page(parts, root, areas, number));
    PENSTOCK_TRY(loaded.table.set_page_words(number, page.first.words));
    loaded.page_hashes.push_back(TablePage::hash_of(page.second));
    loaded.pages.push_back(page.second);
  }
  if (pages_digest(loaded.page_hashes) != root.pages_digest) {
    return Status(Code::kCorrupt, text("root ", root.sequence, ": its pages are not those it was written with"));
  }
  PENSTOCK_TRY(decode_state(loaded.table.state(), layout.table().state_capacity(), loaded.payload));
  for (TileId tile = 0; tile < parts.shape.tiles.size(); ++tile) {
    if (loaded.table.slot(tile) >= layout.slots_of(tile)) {
      return Status(Code::kCorrupt,
                    text("root ", root.sequence, " names slot ", loaded.table.slot(tile), " of tile ", tile));
    }
  }
  return loaded;
}

// A root is written when every drive has flushed the pages that it names. So no crash leaves a drive without one of
// them while another drive has the root: such a drive has lost writes, of tiles too perhaps. A page that is merely
// damaged on a drive that has the root is no such sign; it is restored from another copy.
std::string doubt_about_pages(const StoreParts& parts, const RootRecord& root, const Loaded& loaded,
                              const std::vector<RootCopy>& copies, const PageAreas& areas) {
  for (uint32_t drive = 0; drive < parts.files.size(); ++drive) {
    const bool has_root = std::any_of(copies.begin(), copies.end(),
                                      [&](const RootCopy& copy) { return copy.drive == drive && copy.root == root; });
    for (uint32_t number = 0; number < loaded.pages.size(); ++number) {
      const std::span<const std::byte> meant = loaded.pages[number];
      const std::span<const std::byte> bytes =
          page_bytes_in(areas[drive], parts.layout, number, root.page_slots[number]);
      if (bytes.empty() || std::equal(bytes.begin(), bytes.end(), meant.begin())) continue;
      const std::string what = text(parts.files[drive]->path(), ": ", parts.layout.table().page_name(number));
      const Result<TablePage> page = TablePage::decode(bytes, what);
      if (page.ok() && page->store == root.store) return what + ": older than on another drive";
      if (!has_root) return what + ": missing, and so is the root that names it";
    }
  }
  return "";
}

Status verify_all(IoEngine& engine, const StoreParts& parts, const TileTable& table, ChecksumFunction checksum,
                  const ScrubProgress& progress, uint64_t step) {
  Buffer memory = Buffer::on_heap(kVerifyBytes);
  PENSTOCK_TRY_ASSIGN(report, verify_tiles(engine, parts, table, checksum, memory.bytes(), progress));
  if (report.bad.empty()) return Status();
  // One that was read and is not what it was settles the matter, whatever else could not be read.
  auto worst = std::find_if(report.bad.begin(), report.bad.end(), [](const BadBlock& bad) { return bad.unread.ok(); });
  const BadBlock& first = worst != report.bad.end() ? *worst : report.bad.front();
  if (!first.unread.ok()) return first.unread.within(text("step ", step, ": ", first.tensor));
  return Status(Code::kCorrupt, text("step ", step, ": ", report.bad.size(), " of ", report.blocks,
                                     " blocks are not what was written, the first at ", first.offset_bytes, " of ",
                                     first.file, ": ", first.tensor));
}

void repair_pages(const StoreParts& parts, const RootRecord& root, const Loaded& loaded, const PageAreas& areas,
                  Repairs& repairs) {
  for (uint32_t number = 0; number < loaded.pages.size(); ++number) {
    for (uint32_t drive = 0; drive < parts.files.size(); ++drive) {
      std::span<const std::byte> bytes = page_bytes_in(areas[drive], parts.layout, number, root.page_slots[number]);
      std::span<const std::byte> meant = loaded.pages[number];
      if (std::equal(bytes.begin(), bytes.end(), meant.begin(), meant.end())) continue;
      repairs.add(drive, parts.layout.page_offset(number, root.page_slots[number]), {meant.begin(), meant.end()},
                  text(parts.files[drive]->path(), ": ", parts.layout.table().page_name(number)));
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
    repairs.add_root(copy.drive, StoreLayout::root_offset(copy.place), root.encode(), copy.why);
  }
}

// Steps later than the one that is gone on from, of which the drives still have a root or at least a page.
struct LaterSteps {
  uint64_t newest = 0;
  std::string why_lost;
};

LaterSteps later_steps(const StoreParts& parts, const RootRecord& chosen, const std::vector<RootCopy>& copies,
                       const std::vector<RootRecord>& roots, const PageAreas& areas, const std::string& refusal) {
  LaterSteps later{chosen.step, refusal};
  uint64_t sequence = chosen.sequence;
  for (const RootRecord& root : roots) {
    if (root.sequence <= sequence) continue;
    later.newest = std::max(later.newest, root.step);
    sequence = root.sequence;
  }
  const uint64_t page_bytes = parts.layout.table().page_bytes();
  for (const PageArea& area : areas) {
    for (size_t index = 0; index < area.unread.size(); ++index) {
      if (!area.unread[index].ok()) continue;
      const Result<TablePage> page = TablePage::decode(area.bytes.bytes().subspan(index * page_bytes, page_bytes), "");
      if (!page.ok() || page->store != chosen.store || page->sequence <= sequence || page->step <= later.newest)
        continue;
      later = {page->step, "it was not yet durable when the last run ended, or its root was lost since"};
      sequence = page->sequence;
    }
  }
  // A root in its place that has rotted is a better reason than a crash.
  const auto rotten = std::find_if(copies.begin(), copies.end(), [&](const RootCopy& copy) {
    return !copy.root && copy.place == sequence % 2 && sequence != chosen.sequence;
  });
  if (rotten != copies.end()) later.why_lost = rotten->why;
  return later;
}

void note_lost_steps(const LaterSteps& later, uint64_t step, Repairs& repairs) {
  if (later.newest <= step) return;
  const std::string steps = later.newest == step + 1 ? text("step ", later.newest, " is")
                                                     : text("steps ", step + 1, " to ", later.newest, " are");
  repairs.note(text(steps, " lost, the store is at step ", step, ": ", later.why_lost));
}

Status torn(const RootRecord& root) {
  return Status(Code::kCorrupt,
                text("the run ended inside the step after ", root.step,
                     ", which was overwriting the only copy of its state (--space single)"),
                "make a new store with --force; one made with --space double survives this");
}

}  // namespace

void Repairs::add(uint32_t drive, uint64_t offset_bytes, std::vector<std::byte> bytes, const std::string& what) {
  complete(drive, offset_bytes, std::move(bytes));
  note(what + ": damaged or old; another copy is good");
  ++report_.bad_copies;
}

void Repairs::complete(uint32_t drive, uint64_t offset_bytes, std::vector<std::byte> bytes) {
  repairs_.push_back({drive, offset_bytes, std::move(bytes)});
}

void Repairs::add_root(uint32_t drive, uint64_t offset_bytes, std::vector<std::byte> bytes, const std::string& why) {
  roots_.push_back({drive, offset_bytes, std::move(bytes)});
  if (why.empty()) return;
  note(why + "; another copy is good");
  ++report_.bad_copies;
}

void Repairs::compare_copies(IoEngine& engine, const StoreFiles& files, uint64_t offset_bytes,
                             std::span<const std::byte> expected, const std::string& what) {
  for (uint32_t drive = 0; drive < files.size(); ++drive) {
    Result<Buffer> bytes = read_bytes(engine, *files[drive], offset_bytes, expected.size());
    bool same = bytes.ok() && std::equal(expected.begin(), expected.end(), bytes->bytes().begin());
    if (!same) add(drive, offset_bytes, {expected.begin(), expected.end()}, files[drive]->path() + ": " + what);
  }
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
  const bool runs = options.purpose == OpenOptions::Purpose::run;
  if (runs) PENSTOCK_TRY(newest_may_be_unread(copies, roots, parts.files));
  if (roots.empty()) {
    return Status(Code::kCorrupt, text(where, ": no root can be read on any drive: ", copies.front().why),
                  "put back a copy of the store's files, or make a new store with --force");
  }
  const PageAreas areas = read_page_areas(engine, parts);
  std::string doubt = doubt_about_roots(copies, roots, static_cast<uint32_t>(parts.files.size()));
  Status first_refusal, stopped;
  const ScrubProgress progress = [&](double share) {
    return stopped = options.verifying ? options.verifying(share) : Status();
  };
  for (const RootRecord& root : roots) {
    Result<Loaded> loaded = load(parts, root, areas);
    Status refusal = loaded.status();
    const Status unread = loaded.ok() ? Status() : pages_may_be_unread(parts, root, areas);
    if (!unread.ok() && runs) return wait_for_drive(unread, parts.files, drives_with(copies, root), place_of(root));
    if (root.state == RootRecord::State::torn && runs) return torn(root).within(where);
    if (refusal.ok() && doubt.empty()) doubt = doubt_about_pages(parts, root, *loaded, copies, areas);
    if (refusal.ok() && !doubt.empty() && !runs) {
      repairs.note(text(doubt, ": step ", root.step, " may not be the last, and has not been verified"));
    } else if (refusal.ok() && !doubt.empty()) {
      refusal = verify_all(engine, parts, loaded->table, options.checksum, progress, root.step);
      PENSTOCK_TRY(stopped);
      if (!refusal.ok() && refusal.code() != Code::kCorrupt) {
        return wait_for_drive(refusal, parts.files, drives_with(copies, root), place_of(root));
      }
      if (refusal.ok()) repairs.note(text(doubt, ": every block of step ", root.step, " was verified"));
    }
    if (refusal.ok()) {
      note_lost_steps(later_steps(parts, root, copies, roots, areas, first_refusal.message()), root.step, repairs);
      repair_pages(parts, root, *loaded, areas, repairs);
      repair_roots(copies, root, repairs);
      parts.root = root;
      parts.payload = std::move(loaded->payload);
      parts.table = std::move(loaded->table);
      parts.page_hashes = std::move(loaded->page_hashes);
      return Status();
    }
    if (first_refusal.ok()) first_refusal = refusal;
    doubt = refusal.message();
  }
  return Status(Code::kCorrupt, text(where, ": no step can be recovered: ", first_refusal.message()),
                "put back a copy of the store's files, or make a new store with --force; `penstock checkpoint scrub` "
                "names every bad block");
}

}  // namespace penstock::aio
