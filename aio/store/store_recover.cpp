#include "aio/store/store_recover.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "aio/store/store_pages.h"
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
  std::string why;  // why there is no root
  Status unread;    // the drive's refusal, if that is the reason
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

// Every root that at least one drive has, newest first.
std::vector<RootRecord> candidates_of(const std::vector<RootCopy>& copies) {
  std::vector<RootRecord> roots;
  for (const RootCopy& copy : copies) {
    if (copy.root && std::find(roots.begin(), roots.end(), *copy.root) == roots.end()) roots.push_back(*copy.root);
  }
  std::stable_sort(roots.begin(), roots.end(),
                   [](const RootRecord& a, const RootRecord& b) { return a.sequence > b.sequence; });
  return roots;
}

// Refuses to open while a drive cannot be read: it may answer at the next try, and going on from an older step would
// give up the newer one for good. `drives` have a root in that place, or may have one.
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

// Whether a root place that could not be read may hold a root newer than all that were read. It cannot if another drive
// has the newest root in the same place. Nor does it matter if all other drives have an older root there: then the
// newer one was never acknowledged, because that takes all drives.
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

// The same check, as far as the pages tell.
std::string doubt_about_pages(const RootRecord& root, const RootContents& contents, const std::vector<RootCopy>& copies,
                              const StorePages& pages, uint32_t drives) {
  for (uint32_t drive = 0; drive < drives; ++drive) {
    const bool has_root = std::any_of(copies.begin(), copies.end(),
                                      [&](const RootCopy& copy) { return copy.drive == drive && copy.root == root; });
    if (std::string sign = pages.sign_of_lost_writes(root, contents, drive, has_root); !sign.empty()) return sign;
  }
  return "";
}

Status verify_all(IoEngine& engine, const StoreParts& parts, const TileTable& table, ChecksumFunction checksum,
                  const ScrubProgress& progress, uint64_t step) {
  Buffer memory = Buffer::on_heap(kVerifyBytes);
  PENSTOCK_TRY_ASSIGN(report, verify_tiles(engine, parts, table, checksum, memory.bytes(), progress));
  if (report.bad.empty()) return Status();
  // A block that was read and differs settles the matter, whatever else could not be read.
  auto worst = std::find_if(report.bad.begin(), report.bad.end(), [](const BadBlock& bad) { return bad.unread.ok(); });
  const BadBlock& first = worst != report.bad.end() ? *worst : report.bad.front();
  if (!first.unread.ok()) return first.unread.within(text("step ", step, ": ", first.tensor));
  return Status(Code::kCorrupt, text("step ", step, ": ", report.bad.size(), " of ", report.blocks,
                                     " blocks are not what was written, the first at ", first.offset_bytes, " of ",
                                     first.file, ": ", first.tensor));
}

// Every drive gets the root in its own place. In the other place an older root stays; anything else is replaced by this
// root, so that a root that was not believed is not found there later.
void repair_roots(const std::vector<RootCopy>& copies, const RootRecord& root, Repairs& repairs) {
  for (const RootCopy& copy : copies) {
    bool own_place = copy.place == place_of(root);
    bool good = copy.root && (*copy.root == root || (!own_place && copy.root->sequence < root.sequence));
    if (good) continue;
    repairs.add_root(copy.drive, StoreLayout::root_offset(copy.place), root.encode(), copy.why);
  }
}

// Steps later than the chosen one of which the drives still have a root, or at least a page.
struct LaterSteps {
  uint64_t newest = 0;
  std::string why_lost;
};

LaterSteps later_steps(const RootRecord& chosen, const std::vector<RootCopy>& copies,
                       const std::vector<RootRecord>& roots, const StorePages& pages, const std::string& refusal) {
  LaterSteps later{chosen.step, refusal};
  uint64_t sequence = std::max(chosen.sequence, roots.front().sequence);
  for (const RootRecord& root : roots) {
    if (root.sequence > chosen.sequence) later.newest = std::max(later.newest, root.step);
  }
  if (const std::optional<TablePage> page = pages.newest_after(sequence); page && page->step > later.newest) {
    later = {page->step, "it was not yet durable when the last run ended, or its root was lost since"};
    sequence = page->sequence;
  }
  // If the place of the later root is damaged, that explains the loss better than a crash.
  const auto damaged = std::find_if(copies.begin(), copies.end(), [&](const RootCopy& copy) {
    return !copy.root && copy.place == sequence % 2 && sequence != chosen.sequence;
  });
  if (damaged != copies.end()) later.why_lost = damaged->why;
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
  const StorePages pages(engine, parts);
  const auto drives = static_cast<uint32_t>(parts.files.size());
  std::string doubt = doubt_about_roots(copies, roots, drives);
  Status first_refusal, stopped;
  bool scrub_reads_it = false;
  const ScrubProgress progress = [&](double share) {
    return stopped = options.verifying ? options.verifying(share) : Status();
  };
  for (const RootRecord& root : roots) {
    // Nothing has overwritten what an older root names: that waits until all ranks have the newer one.
    if (options.newest_step && root.step > *options.newest_step) {
      first_refusal = Status(
          Code::kCorrupt, text("step ", root.step,
                               parts.shape.ranks > 1 ? " was not committed by all ranks"
                                                     : text(" is later than the wanted step ", *options.newest_step)));
      continue;
    }
    Result<RootContents> contents = pages.contents_of(root);
    Status refusal = contents.status();
    scrub_reads_it |= contents.ok();
    const Status unread = contents.ok() ? Status() : pages.unread_page_of(root);
    if (!unread.ok() && runs) return wait_for_drive(unread, parts.files, drives_with(copies, root), place_of(root));
    if (root.state == RootRecord::State::torn && runs) return torn(root).within(where);
    if (refusal.ok() && doubt.empty()) doubt = doubt_about_pages(root, *contents, copies, pages, drives);
    if (refusal.ok() && !doubt.empty() && !runs) {
      repairs.note(text(doubt, ": step ", root.step, " may not be the last, and has not been verified"));
    } else if (refusal.ok() && !doubt.empty()) {
      refusal = verify_all(engine, parts, contents->table, options.checksum, progress, root.step);
      PENSTOCK_TRY(stopped);
      if (!refusal.ok() && refusal.code() != Code::kCorrupt) {
        return wait_for_drive(refusal, parts.files, drives_with(copies, root), place_of(root));
      }
      if (refusal.ok()) repairs.note(text(doubt, ": every block of step ", root.step, " was verified"));
    }
    if (refusal.ok()) {
      note_lost_steps(later_steps(root, copies, roots, pages, first_refusal.message()), root.step, repairs);
      pages.repair(root, *contents, repairs);
      repair_roots(copies, root, repairs);
      parts.root = root;
      parts.payload = std::move(contents->payload);
      parts.table = std::move(contents->table);
      parts.page_hashes = std::move(contents->page_hashes);
      return Status();
    }
    if (first_refusal.ok()) first_refusal = refusal;
    doubt = refusal.message();
  }
  return Status(Code::kCorrupt, text(where, ": no step can be recovered: ", first_refusal.message()),
                text("put back a copy of the store's files, or make a new store with --force",
                     scrub_reads_it ? "; `penstock checkpoint scrub` names every bad block" : ""));
}

}  // namespace penstock::aio
