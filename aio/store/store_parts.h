// StoreParts is an opened store at rest: its files, and what the root says that was believed. open_store() makes it,
// verify_tiles() reads it, TileStore runs on it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/store/store_io.h"
#include "aio/store/tile_store.h"
#include "tiering/store/root_record.h"
#include "tiering/store/store_header.h"
#include "tiering/store/store_layout.h"
#include "tiering/store/table_page.h"

namespace penstock::aio {

struct StoreParts {
  StoreFiles files;
  StoreHeader header;  // of drive 0
  StoreShape shape;
  StoreLayout layout;
  RootRecord root;
  RootPayload payload;
  TileTable table;
  std::vector<uint64_t> page_hashes;
  OpenReport report;
};

// See TileStore::open().
Result<std::unique_ptr<StoreParts>> open_store(IoEngine& engine, DriveFolders folders, const OpenOptions& options);

// Reads every block that `table` names, or those of them that steps update, and compares its checksum. `memory` is cut
// into chunks. Only `progress` refuses.
enum class VerifiedTiles { all, updated };
Result<ScrubReport> verify_tiles(IoEngine& engine, const StoreParts& parts, const TileTable& table,
                                 ChecksumFunction checksum, std::span<std::byte> memory,
                                 const ScrubProgress& progress = {}, VerifiedTiles which = VerifiedTiles::all);

}  // namespace penstock::aio
