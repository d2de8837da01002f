// Making a store: its files, the first slots, the first root. Until its headers say "complete", it cannot be opened.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "aio/store/store_parts.h"
#include "aio/store/store_presence.h"
#include "aio/store/tile_chunks.h"
#include "aio/windowed_io.h"
#include "tiering/check.h"

namespace penstock::aio {
namespace {

// Null where nobody can use it: damage does not matter, it is about to be removed. Refused while another process does.
Result<std::unique_ptr<File>> lock_file(DriveFolder& folder, const std::string& name) {
  Result<std::unique_ptr<File>> file = folder.open_file(name);
  const Code code = file.status().code();
  if (code == Code::kCorrupt || code == Code::kDoesNotFit) return std::unique_ptr<File>();
  return file;
}

// What a killed maker has left before its file had a name.
Status remove_unnamed(DriveFolder& folder, const std::string& name) {
  if (!folder.has_file(unnamed_file(name))) return Status();
  const Result<std::unique_ptr<File>> locked = lock_file(folder, unnamed_file(name));
  PENSTOCK_TRY(locked.status());
  return folder.remove_file(unnamed_file(name));
}

// The files that a new store replaces: open, and so locked, until they are removed, so that no other process goes on
// with a file that no longer has a name.
struct Replaced {
  std::vector<bool> is_there;  // by drive
  StoreFiles files;            // null where there is none, or only one that nobody can use
};
Result<Replaced> lock_replaced(IoEngine& engine, DriveFolders folders, const std::string& name,
                               CreateOptions::Existing existing) {
  Replaced replaced{std::vector<bool>(folders.size()), StoreFiles(folders.size())};
  std::vector<const File*> there;
  std::string where;
  for (size_t drive = 0; drive < folders.size(); ++drive) {
    DriveFolder& folder = *folders[drive];
    PENSTOCK_TRY(remove_unnamed(folder, name));
    if (!folder.has_file(name)) continue;
    if (where.empty()) where = folder.path();
    PENSTOCK_TRY_ASSIGN(file, lock_file(folder, name));
    replaced.is_there[drive] = true;
    replaced.files[drive] = std::move(file);
    there.push_back(replaced.files[drive].get());
  }
  const StorePresence found = presence_of(engine, there);
  if (existing == CreateOptions::Existing::refuse && found.kind == StorePresence::Kind::there) {
    return Status(Code::kUsage, text(where, ": has a store already: ", name),
                  "resume from it, or replace it with --force");
  }
  return replaced;
}

// Checked before anything is removed, so that a refusal loses nothing.
Status check_space(DriveFolders folders, const StoreLayout& layout, const CreateOptions& options,
                   const StoreFiles& replaced) {
  struct Space {
    std::string paths;
    uint64_t needed_bytes = 0, free_bytes = 0, given_back_bytes = 0;
  };
  std::map<uint64_t, Space> spaces;  // by file system
  for (uint32_t drive = 0; drive < folders.size(); ++drive) {
    DriveFolder& folder = *folders[drive];
    PENSTOCK_TRY_ASSIGN(free, folder.free_space());
    Space& space = spaces[free.file_system];
    space.paths += (space.paths.empty() ? "" : ", ") + folder.path();
    space.needed_bytes += layout.file_bytes(drive);
    space.free_bytes = free.bytes;
    if (replaced[drive]) space.given_back_bytes += replaced[drive]->size_bytes();
  }
  for (const auto& [file_system, space] : spaces) {
    const uint64_t free_bytes = space.free_bytes + space.given_back_bytes;
    if (free_bytes >= space.needed_bytes) continue;
    const bool half_fits = options.slots > 1 && free_bytes >= space.needed_bytes / 2 + kMiB;
    return Status(Code::kDoesNotFit,
                  text(space.paths, ": the store needs ", bytes_text(space.needed_bytes), " here and ",
                       bytes_text(free_bytes), " are free"),
                  text("free some space, or give another drive",
                       half_fits ? ", or use --space single, which needs half of it" : ""));
  }
  return Status();
}

// The first copy of all drives before the second of any.
Status write_header_copies(IoEngine& engine, const StoreFiles& files, const std::vector<StoreHeader>& headers) {
  for (uint32_t copy = 0; copy < 2; ++copy) {
    for (size_t drive = 0; drive < files.size(); ++drive) {
      PENSTOCK_TRY(write_bytes(engine, *files[drive], StoreLayout::header_offset(copy), headers[drive].encode()));
    }
  }
  return flush_all(engine, files);
}

class Creation {
 public:
  Creation(IoEngine& engine, const StoreShape& shape, const StoreLayout& layout, const CreateOptions& options)
      : engine_(engine),
        shape_(shape),
        layout_(layout),
        options_(options),
        store_(options.id ? *options.id : draw_store_id()),
        table_(layout.shared_table()),
        pool_(Tier::host, options.memory, kChunkBytes),
        windowed_(engine, pool_) {
    CHECK(pool_.pieces() > 0, "making a store takes at least ", kChunkBytes, " B of memory");
  }

  Status run(DriveFolders folders, const FillTile& fill) {
    const std::string name = store_file_name(shape_.rank);
    for (uint32_t drive = 0; drive < folders.size(); ++drive) {
      PENSTOCK_TRY_ASSIGN(file, folders[drive]->create_file(unnamed_file(name), layout_.file_bytes(drive)));
      files_.push_back(std::move(file));
    }
    PENSTOCK_TRY(write_headers(StoreHeader::State::creating));
    for (; named_ < folders.size(); ++named_) PENSTOCK_TRY(folders[named_]->rename_file(unnamed_file(name), name));
    const std::vector<std::byte> shape = shape_.encode();
    for (uint32_t copy = 0; copy < 2; ++copy) {
      PENSTOCK_TRY(write_on_all(engine_, files_, StoreLayout::shape_offset(copy, shape.size()), shape));
    }
    PENSTOCK_TRY(write_tiles(fill));
    PENSTOCK_TRY(write_table_and_root());
    return options_.is_one_of_several ? Status() : write_headers(StoreHeader::State::complete);
  }
  // What it is called that was made here, on the first drives.
  std::vector<std::string> files_made() const {
    std::vector<std::string> names(files_.size(), unnamed_file(store_file_name(shape_.rank)));
    std::fill_n(names.begin(), named_, store_file_name(shape_.rank));
    return names;
  }

 private:
  Status write_headers(StoreHeader::State state) {
    StoreHeader header{.format = shape_.has_codes() ? kStoreFormatWithCodes : kStoreFormat,
                       .store = store_,
                       .state = state,
                       .drive = 0,
                       .slots = layout_.slots(),
                       .shares = layout_.shares(),
                       .state_capacity = options_.state_capacity,
                       .weights = options_.weights,
                       .shape_bytes = shape_.encode().size(),
                       .shape_digest = shape_.digest(),
                       .file_bytes = 0};
    std::vector<StoreHeader> headers(files_.size(), header);
    for (uint32_t drive = 0; drive < files_.size(); ++drive) {
      headers[drive].drive = drive;
      headers[drive].file_bytes = layout_.file_bytes(drive);
    }
    return write_header_copies(engine_, files_, headers);
  }

  Status write_tiles(const FillTile& fill) {
    for (TileId tile = 0; tile < shape_.tiles.size(); ++tile) {
      table_.set(tile, 0, std::vector<uint64_t>(layout_.table().checksums(tile)));
      for (const TileChunk& chunk : chunks_of(shape_, tile)) PENSTOCK_TRY(add_chunk(chunk, fill));
    }
    write_batch();
    return windowed_.finish();
  }

  // Planes of small tiles share a request, because drives are slow at many small ones.
  Status add_chunk(const TileChunk& chunk, const FillTile& fill) {
    if (batch_bytes_ + chunk.padded_bytes() > kChunkBytes) write_batch();
    if (!batch_) {
      PENSTOCK_TRY_ASSIGN(window, windowed_.free_window());
      batch_ = std::move(window);
    }
    std::span<std::byte> bytes = batch_->bytes().subspan(batch_bytes_, chunk.padded_bytes());
    PENSTOCK_TRY(fill(chunk.tile, chunk.plane, chunk.plane_offset_bytes, bytes.first(chunk.length_bytes)));
    std::memset(bytes.data() + chunk.length_bytes, 0, bytes.size() - chunk.length_bytes);
    for_each_block(shape_, chunk, bytes, [&](uint64_t number, const TileBlock&, std::span<std::byte> content) {
      table_.set_checksum(chunk.tile, number, options_.checksum(content, checksum_seed(chunk.tile, number)));
    });
    for (const Extent& extent :
         extents_of(layout_, files_, {chunk.tile, 0}, chunk.tile_offset_bytes, bytes.size(), batch_bytes_)) {
      append(batch_extents_, extent);
    }
    batch_bytes_ += bytes.size();
    return Status();
  }

  void write_batch() {
    if (!batch_) return;
    windowed_.write(batch_extents_, *std::exchange(batch_, std::nullopt));
    batch_extents_.clear();
    batch_bytes_ = 0;
  }

  // Both places get the first root. So a place without a root is always a damaged one, never one not yet written.
  Status write_table_and_root() {
    const TableGeometry& geometry = layout_.table();
    RootRecord root{.store = store_,
                    .sequence = 1,
                    .state = RootRecord::State::whole,
                    .shape_digest = shape_.digest(),
                    .pages_digest = 0,
                    .page_slots = std::vector<uint8_t>(geometry.pages(), 0)};
    root.set(options_.payload);
    table_.set_state(encode_state(options_.payload, options_.state_capacity));
    std::vector<uint64_t> page_hashes;
    for (uint32_t number = 0; number < geometry.pages(); ++number) {
      std::span<const uint64_t> words = table_.page_words(number);
      TablePage page{store_, number, root.sequence, root.step, {words.begin(), words.end()}};
      std::vector<std::byte> bytes = page.encode(geometry.page_bytes());
      page_hashes.push_back(TablePage::hash_of(bytes));
      PENSTOCK_TRY(write_on_all(engine_, files_, layout_.page_offset(number, 0), bytes));
    }
    root.pages_digest = pages_digest(page_hashes);
    PENSTOCK_TRY(flush_all(engine_, files_));
    for (uint64_t place : {0, 1}) {
      PENSTOCK_TRY(write_on_all(engine_, files_, StoreLayout::root_offset(place), root.encode()));
    }
    return flush_all(engine_, files_);
  }

  IoEngine& engine_;
  const StoreShape& shape_;
  const StoreLayout& layout_;
  const CreateOptions& options_;
  const StoreId store_;
  StoreFiles files_;
  size_t named_ = 0;  // of them
  TileTable table_;
  BufferPool pool_;
  WindowedIo windowed_;
  // Chunks that have been filled but not yet written.
  std::optional<Lease> batch_;
  std::vector<Extent> batch_extents_;
  uint64_t batch_bytes_ = 0;
};

}  // namespace

StoreId draw_store_id() {
  std::random_device device;
  auto word = [&] { return (uint64_t{device()} << 32) | device(); };
  return {word(), word()};
}

std::vector<uint64_t> TileStore::bytes_needed(const StoreShape& shape, uint32_t slots, uint32_t drives,
                                              const std::vector<double>& rates, StateCapacity state) {
  StoreLayout layout(shape, slots, shares_of(rates, drives), state);
  std::vector<uint64_t> bytes;
  for (uint32_t drive = 0; drive < drives; ++drive) bytes.push_back(layout.file_bytes(drive));
  return bytes;
}

Status TileStore::create(IoEngine& engine, DriveFolders folders, const StoreShape& shape, const CreateOptions& options,
                         const FillTile& fill) {
  CHECK(!folders.empty() && folders.size() <= kDrivesMax, folders.size(), " drives");
  PENSTOCK_TRY(shape.validate());
  PENSTOCK_TRY(options.state_capacity.validate());
  PENSTOCK_TRY(options.payload.validate(options.state_capacity));
  const StoreLayout layout(shape, options.slots, shares_of(options.rates, static_cast<uint32_t>(folders.size())),
                           options.state_capacity, options.weights);
  const std::string name = store_file_name(shape.rank);
  {
    PENSTOCK_TRY_ASSIGN(replaced, lock_replaced(engine, folders, name, options.existing));
    PENSTOCK_TRY(check_space(folders, layout, options, replaced.files));
    const bool replaces = options.existing == CreateOptions::Existing::replace;  // also what leads nowhere
    for (size_t drive = 0; drive < folders.size(); ++drive) {
      if (replaces || replaced.is_there[drive]) PENSTOCK_TRY(folders[drive]->remove_file(name));
    }
  }
  std::optional<Creation> creation(std::in_place, engine, shape, layout, options);
  Status outcome = creation->run(folders, fill);
  if (outcome.ok()) return outcome;
  const std::vector<std::string> made = creation->files_made();
  creation.reset();
  for (size_t drive = 0; drive < made.size(); ++drive) {
    const Status removed = folders[drive]->remove_file(made[drive]);
    if (!removed.ok()) return outcome.within(removed.message());
  }
  return outcome;
}

Status TileStore::complete(IoEngine& engine, DriveFolders folders, uint32_t rank, const StoreId& id) {
  StoreFiles files;
  std::vector<StoreHeader> headers;
  for (const std::shared_ptr<DriveFolder>& folder : folders) {
    PENSTOCK_TRY_ASSIGN(file, folder->open_file(store_file_name(rank)));
    PENSTOCK_TRY_ASSIGN(bytes, read_bytes(engine, *file, StoreLayout::header_offset(0), kRecordBytes));
    PENSTOCK_TRY_ASSIGN(header, StoreHeader::decode(bytes.bytes(), file->path() + ": store header"));
    if (header.store != id) {
      return Status(Code::kUsage, text(file->path(), ": another run has made a store here meanwhile"),
                    "another folder, or wait for that run");
    }
    header.state = StoreHeader::State::complete;
    headers.push_back(std::move(header));
    files.push_back(std::move(file));
  }
  return write_header_copies(engine, files, headers);
}

}  // namespace penstock::aio
