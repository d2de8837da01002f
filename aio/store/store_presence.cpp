#include "aio/store/store_presence.h"

#include <algorithm>
#include <vector>

#include "aio/store/store_io.h"
#include "tiering/store/store_header.h"

namespace penstock::aio {
namespace {

using Kind = StorePresence::Kind;

// What one copy of a header says: none where it is blank, as the making of a file leaves it first.
StorePresence said_by_copy(IoEngine& engine, const File& file, uint32_t copy) {
  const uint64_t offset_bytes = StoreLayout::header_offset(copy);
  if (file.size_bytes() < offset_bytes + kRecordBytes) return {};
  const Result<Buffer> bytes = read_bytes(engine, file, offset_bytes, kRecordBytes);
  if (!bytes.ok()) return {.kind = Kind::there};
  const std::span<const std::byte> read = bytes->bytes();
  if (std::all_of(read.begin(), read.end(), [](std::byte byte) { return byte == std::byte{0}; })) return {};
  const Result<StoreHeader> header = StoreHeader::decode(read, "store header");
  if (!header.ok()) return {.kind = Kind::there};
  return {.kind = header->state == StoreHeader::State::creating ? Kind::half_made : Kind::there, .id = header->store};
}

}  // namespace

std::string unnamed_file(const std::string& store_file) { return "new." + store_file; }

StorePresence presence_of(IoEngine& engine, std::span<const File* const> files) {
  if (files.empty()) return {};
  StorePresence most;
  for (const File* file : files) {
    for (uint32_t copy = 0; file != nullptr && copy < 2; ++copy) {
      const StorePresence said = said_by_copy(engine, *file, copy);
      if (said.kind > most.kind) most = said;
    }
  }
  if (most.kind == Kind::none) most.kind = Kind::there;
  return most;
}

Result<StorePresence> find_store(IoEngine& engine, DriveFolders folders, uint32_t rank) {
  const std::string name = store_file_name(rank);
  std::vector<std::unique_ptr<File>> opened;
  std::vector<const File*> files;
  for (const std::shared_ptr<DriveFolder>& folder : folders) {
    if (!folder->has_file(name)) continue;
    Result<std::unique_ptr<File>> file = folder->open_file(name);
    if (!file.ok() && file.status().code() != Code::kCorrupt) return file.status();
    if (file.ok()) opened.push_back(*std::move(file));
    files.push_back(file.ok() ? opened.back().get() : nullptr);
  }
  return presence_of(engine, files);
}

Status remove_store(IoEngine& engine, DriveFolders folders, uint32_t rank, const StoreId& id) {
  const Result<StorePresence> found = find_store(engine, folders, rank);
  if (!found.ok() || (found->id != id && found->id != StoreId{})) return Status();
  for (const std::shared_ptr<DriveFolder>& folder : folders) PENSTOCK_TRY(folder->remove_file(store_file_name(rank)));
  return Status();
}

bool is_half_made(std::span<const StorePresence> of_ranks) {
  const auto is_cut_short = [](const StorePresence& store) { return store.kind == Kind::half_made; };
  const auto is_of_that_making = [&](const StorePresence& store) {
    return std::any_of(of_ranks.begin(), of_ranks.end(),
                       [&](const StorePresence& other) { return is_cut_short(other) && other.id == store.id; });
  };
  return std::any_of(of_ranks.begin(), of_ranks.end(), is_cut_short) &&
         std::all_of(of_ranks.begin(), of_ranks.end(),
                     [&](const StorePresence& store) { return store.kind != Kind::there || is_of_that_making(store); });
}

}  // namespace penstock::aio
