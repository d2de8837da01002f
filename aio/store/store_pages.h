// StorePages are all pages of a store as its drives have them: of the table and of the run's state, every slot of every
// one, on every drive. From them comes what one root says.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/store/store_parts.h"
#include "aio/store/store_repairs.h"

namespace penstock::aio {

// Everything that a root names except the tiles.
struct RootContents {
  TileTable table;
  RootPayload payload;
  std::vector<uint64_t> page_hashes;
  std::vector<std::span<const std::byte>> pages;  // of StorePages, which outlives them
};

class StorePages {
 public:
  // Reads them. What a drive refuses to read is kept as such. `parts` outlives the pages.
  StorePages(IoEngine& engine, const StoreParts& parts);

  // What the root says. Refused if a page cannot be had from any drive, or if the pages together are not those that the
  // root was written with.
  Result<RootContents> contents_of(const RootRecord& root) const;

  // The refusal of the first drive that does not read a page of this root; ok if all of them can be read.
  Status unread_page_of(const RootRecord& root) const;

  // Why the drive cannot have been there when the root was written; empty if nothing says so.
  //
  // A root is written only after every drive has flushed the pages that it names. So if one drive has the root and
  // another lacks one of those pages, the other has lost writes since, perhaps of tiles too. A page that is merely
  // damaged on a drive that does have the root is no such sign; it is restored from another copy.
  std::string sign_of_lost_writes(const RootRecord& root, const RootContents& contents, uint32_t drive,
                                  bool drive_has_root) const;

  // The newest page of a root later than `sequence`, if there is one.
  std::optional<TablePage> newest_after(uint64_t sequence) const;

  // Adds the copies that differ from what the root means.
  void repair(const RootRecord& root, const RootContents& contents, Repairs& repairs) const;

 private:
  struct DrivePages {
    Buffer bytes;
    std::vector<Status> unread;  // by page and slot: the drive's refusal
  };

  size_t index_of(uint32_t page, uint32_t slot) const;
  // Empty if it could not be read.
  std::span<const std::byte> bytes_of(uint32_t drive, uint32_t page, uint32_t slot) const;
  std::string name_of(uint32_t drive, uint32_t page) const;
  Result<std::pair<TablePage, std::span<const std::byte>>> find(const RootRecord& root, uint32_t number) const;

  const StoreParts& parts_;
  std::vector<DrivePages> drives_;
};

}  // namespace penstock::aio
