// Opening a store: finds its files, checks that they belong together, and reads what is stored. store_recover.cpp
// decides which root to believe.
#include <algorithm>
#include <array>
#include <optional>

#include "aio/store/store_parts.h"
#include "aio/store/store_recover.h"
#include "tiering/check.h"

namespace penstock::aio {
namespace {

// What was found in one folder.
struct Found {
  const DriveFolder* folder = nullptr;
  std::string path;
  std::unique_ptr<File> file;
  std::optional<StoreHeader> header;
  std::array<std::optional<StoreHeader>, 2> header_copies;
  Status refusal;      // why there is no header
  bool blank = false;  // only zeros: its creation was interrupted at once, or it has lost everything
};

const char* const kStartAgain = "start again what was making it, which makes it anew; nothing in this one can be used";
const char* const kRecreate = "make a new store with --force; nothing in this one can be used";
const char* const kRestore = "put back a copy of the store's files, or make a new store with --force";
const char* const kGiveFolders = "give the folders of a store, each once";

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

bool differ_in_state_only(StoreHeader a, const StoreHeader& b) {
  a.state = b.state;
  return a == b;
}

// Two headers of the same store, as its creation wrote them.
bool differ_in_drive_only(StoreHeader a, const StoreHeader& b) {
  a.state = b.state;
  a.drive = b.drive;
  a.file_bytes = b.file_bytes;
  return a == b;
}

Status read_header(IoEngine& engine, Found& found) {
  const std::string& path = found.path;
  const uint64_t size_bytes = found.file->size_bytes();
  if (size_bytes < StoreLayout::shape_offset()) {
    found.refusal = Status(
        Code::kUsage,
        text(path, ": not a store: ", size_bytes, " B long, at least ", StoreLayout::shape_offset(), " B expected"),
        text("give the folders of a store; if this file was cut short, ", kRestore));
    return Status();
  }
  uint32_t blank_copies = 0;
  for (uint32_t number = 0; number < 2; ++number) {
    Result<Buffer> bytes = read_bytes(engine, *found.file, StoreLayout::header_offset(number), kRecordBytes);
    Result<StoreHeader> header =
        bytes.ok() ? StoreHeader::decode(bytes->bytes(), path + ": store header") : Result<StoreHeader>(bytes.status());
    if (bytes.ok() && all_zero(bytes->bytes())) ++blank_copies;
    if (header.ok()) {
      found.header_copies[number] = *header;
    } else if (found.refusal.ok() || found.refusal.code() == Code::kUsage || !bytes.ok()) {
      found.refusal = header.status();  // prefer the refusal that may go away at the next try
    }
  }
  found.blank = blank_copies == 2;
  const std::array<std::optional<StoreHeader>, 2>& copies = found.header_copies;
  // Creation changes the state of one copy after the other; nothing else may differ.
  if (copies[0] && copies[1] && !differ_in_state_only(*copies[0], *copies[1])) {
    found.refusal = Status(Code::kCorrupt, path + ": its two headers contradict each other");
    return Status();
  }
  for (const std::optional<StoreHeader>& copy : copies) {
    if (copy && (!found.header || copy->state == StoreHeader::State::complete)) found.header = copy;
  }
  if (found.header) found.refusal = Status();
  return Status();
}

// A crash at the end of creation leaves a copy that says "creating". Any other copy that differs is bad.
void mend_headers(const Found& found, Repairs& repairs) {
  StoreHeader whole = *found.header;
  whole.state = StoreHeader::State::complete;
  for (uint32_t number = 0; number < 2; ++number) {
    const std::optional<StoreHeader>& copy = found.header_copies[number];
    if (copy == whole) continue;
    const uint64_t offset_bytes = StoreLayout::header_offset(number);
    if (copy) {
      repairs.complete(whole.drive, offset_bytes, whole.encode());
    } else {
      repairs.add(whole.drive, offset_bytes, whole.encode(), text(found.path, ": store header ", number));
    }
  }
}

std::string count_text(size_t count) { return text(count, count == 1 ? " drive" : " drives"); }

// The name of the first file there that is a rank's; empty for none.
std::string store_of_another_rank(const DriveFolder& folder) {
  constexpr uint32_t kRanksLookedFor = 64;
  for (uint32_t rank = 0; rank < kRanksLookedFor; ++rank) {
    if (std::string name = store_file_name(rank); folder.has_file(name)) return name;
  }
  return "";
}

// What is wrong with the folders as a whole: the most telling finding.
Status judge(const std::vector<Found>& all, const std::string& name) {
  const Found* any = nullptr;
  for (const Found& found : all) {
    if (found.header && (!any || any->header->state < found.header->state)) any = &found;
  }
  for (const Found& found : all) {
    if (found.header || found.blank || found.refusal.ok()) continue;
    const Status& refusal = found.refusal;
    if (!refusal.remedy().empty()) return refusal;
    return Status(refusal.code(), refusal.message(), refusal.code() == Code::kUsage ? kGiveFolders : kRestore);
  }
  bool complete = any && any->header->state == StoreHeader::State::complete;
  for (const Found& found : all) {
    if (complete && found.blank) {
      return Status(
          Code::kCorrupt,
          text(found.path, ": only zeros, but ", any->folder->path(), " has store ", to_text(any->header->store)),
          kRestore);
    }
    if (!complete && (found.blank || found.header)) {
      return Status(Code::kCorrupt, text(found.path, ": a half-created store: its creation was interrupted"),
                    any ? kStartAgain : kRecreate);
    }
  }
  for (const Found& found : all) {
    if (found.file) continue;
    const std::string other = store_of_another_rank(*found.folder);
    if (!other.empty()) {
      return Status(Code::kUsage, text(found.folder->path(), ": no store: ", name, " is missing, ", other, " is there"),
                    "give each rank the folders that its own store was made with");
    }
    return Status(
        Code::kUsage, text(found.folder->path(), ": no store: ", name, " is missing"),
        any ? "give every folder that the store was made with, mounted" : "make one first, or check the path");
  }
  for (const Found& found : all) {
    if (found.header->store == any->header->store) continue;
    return Status(Code::kCorrupt,
                  text(found.folder->path(), ": belongs to store ", to_text(found.header->store), ", but ",
                       any->folder->path(), " to store ", to_text(any->header->store)),
                  "give the folders of one store");
  }
  for (const Found& found : all) {
    if (differ_in_drive_only(*found.header, *any->header)) continue;
    return Status(Code::kCorrupt, text(found.path, ": its header contradicts that of ", any->path), kRestore);
  }
  std::vector<const Found*> by_drive(any->header->drives(), nullptr);
  for (const Found& found : all) {
    const Found*& place = by_drive[found.header->drive];
    if (place) {
      return Status(
          Code::kUsage,
          text(found.folder->path(), ": drive ", found.header->drive, " of the store, as is ", place->folder->path()),
          kGiveFolders);
    }
    place = &found;
    if (found.file->size_bytes() != found.header->file_bytes) {
      return Status(
          Code::kCorrupt,
          text(found.path, ": ", found.file->size_bytes(), " B long, made with ", found.header->file_bytes, " B"),
          kRestore);
    }
  }
  for (uint32_t drive = 0; drive < by_drive.size(); ++drive) {
    if (by_drive[drive]) continue;
    return Status(Code::kUsage,
                  text(any->folder->path(), ": a store of ", count_text(by_drive.size()), ", but ",
                       count_text(all.size()), " given: drive ", drive, " is missing"),
                  "give every folder that the store was made with");
  }
  return Status();
}

Result<std::vector<Found>> open_files(IoEngine& engine, DriveFolders folders, const std::string& name) {
  std::vector<Found> all(folders.size());
  for (size_t i = 0; i < folders.size(); ++i) {
    all[i].folder = folders[i].get();
    all[i].path = folders[i]->path() + "/" + name;
    if (!folders[i]->has_file(name)) continue;
    Result<std::unique_ptr<File>> file = folders[i]->open_file(name);
    if (file.ok()) {
      all[i].file = *std::move(file);
      PENSTOCK_TRY(read_header(engine, all[i]));
    } else if (file.status().code() == Code::kCorrupt) {
      all[i].refusal = Status(
          Code::kCorrupt, text(all[i].path, ": cut short, or its creation was interrupted: ", file.status().message()),
          kRestore);
    } else {
      return file.status();
    }
  }
  PENSTOCK_TRY(judge(all, name));
  std::vector<Found> by_drive(all.size());
  for (Found& found : all) {
    const uint32_t drive = found.header->drive;
    by_drive[drive] = std::move(found);
  }
  return by_drive;
}

// The first copy, on any drive, with the digest that the headers have.
Result<StoreShape> read_shape(IoEngine& engine, const std::vector<Found>& all, std::vector<std::byte>& encoded) {
  const StoreHeader& header = *all.front().header;
  Status why;
  for (const Found& found : all) {
    for (uint32_t copy = 0; copy < 2; ++copy) {
      const uint64_t offset_bytes = StoreLayout::shape_offset(copy, header.shape_bytes);
      Result<Buffer> bytes = read_bytes(engine, *found.file, offset_bytes, header.shape_bytes);
      if (!bytes.ok()) {
        why = bytes.status();  // it may be readable at the next try, so prefer this to "damaged"
        continue;
      }
      std::span<const std::byte> fields = bytes->bytes().first(header.shape_bytes);
      Result<StoreShape> shape = StoreShape::decode(fields);
      if (shape.ok() && shape->digest() == header.shape_digest) {
        encoded.assign(fields.begin(), fields.end());
        return shape;
      }
      if (why.ok()) {
        why = Status(Code::kCorrupt,
                     text(found.path, ": the description of what is stored is damaged, at ",
                          StoreLayout::shape_offset(0, header.shape_bytes), " and at ",
                          StoreLayout::shape_offset(1, header.shape_bytes)),
                     kRestore);
      }
    }
  }
  return why;
}

}  // namespace

Result<std::unique_ptr<StoreParts>> open_store(IoEngine& engine, DriveFolders folders, const OpenOptions& options) {
  CHECK(!folders.empty(), "a store has at least one folder");
  const std::string name = store_file_name(options.rank);
  PENSTOCK_TRY_ASSIGN(all, open_files(engine, folders, name));
  std::vector<std::byte> encoded_shape;
  PENSTOCK_TRY_ASSIGN(shape, read_shape(engine, all, encoded_shape));
  if (shape.rank != options.rank) {
    return Status(Code::kUsage, text(all.front().path, ": is the store of rank ", shape.rank),
                  text("give it its name again: ", store_file_name(shape.rank)));
  }

  const StoreHeader& header = *all.front().header;
  uint64_t bytes = 0;
  for (const Found& found : all) bytes += found.file->size_bytes();
  if (slot_bytes_of(shape, header.slots) > bytes) {
    return Status(Code::kCorrupt,
                  text(all.front().path, ": what is stored takes ", bytes_text(slot_bytes_of(shape, header.slots)),
                       ", its files have ", bytes_text(bytes)),
                  kRestore);
  }
  StoreLayout layout(shape, header.slots, header.shares, header.state_capacity, header.weights);
  Repairs repairs;
  StoreFiles files;
  for (Found& found : all) {
    if (layout.file_bytes(found.header->drive) != found.header->file_bytes) {
      return Status(Code::kCorrupt, text(found.file->path(), ": its header does not fit its contents"), kRestore);
    }
    mend_headers(found, repairs);
    files.push_back(std::move(found.file));
  }
  for (uint32_t copy = 0; copy < 2; ++copy) {
    repairs.compare_copies(engine, files, StoreLayout::shape_offset(copy, header.shape_bytes), encoded_shape,
                           text("store description ", copy));
  }
  auto parts = std::make_unique<StoreParts>(
      StoreParts{std::move(files), header, std::move(shape), layout, {}, {}, TileTable(layout.shared_table()), {}, {}});
  PENSTOCK_TRY(recover_root(engine, *parts, options, repairs));
  if (options.purpose == OpenOptions::Purpose::run) PENSTOCK_TRY(repairs.carry_out(engine, parts->files));
  parts->report = repairs.report();
  return parts;
}

}  // namespace penstock::aio
