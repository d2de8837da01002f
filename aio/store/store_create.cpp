// Making a store: its files, the first slots, the first root. Until its headers say "complete", it cannot be opened.
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "aio/store/store_parts.h"
#include "aio/store/tile_chunks.h"
#include "aio/windowed_io.h"
#include "tiering/check.h"

namespace penstock::aio {
namespace {

// Opens and so locks the file that a new one would replace. Null if there is none, or only one that nobody can use.
Result<std::unique_ptr<File>> lock_existing(DriveFolder& folder, const std::string& name,
                                            CreateOptions::Existing existing) {
  std::unique_ptr<File> nothing;
  if (!folder.has_file(name)) return nothing;
  if (existing == CreateOptions::Existing::refuse) {
    return Status(Code::kUsage, text(folder.path(), ": has a store already: ", name),
                  "resume from it, or replace it with --force");
  }
  // Refused while another process uses it. Damage does not matter: the file is about to be removed.
  Result<std::unique_ptr<File>> file = folder.open_file(name);
  const Code code = file.status().code();
  if (code == Code::kCorrupt || code == Code::kDoesNotFit) return nothing;
  return file;
}

// Checked before anything is removed, so that a refusal loses nothing. The caller keeps `replaced` locked until the
// files are removed, so that no other process opens one and goes on with a file that no longer has a name.
Status check_space(DriveFolders folders, const std::string& name, const StoreLayout& layout,
                   const CreateOptions& options, StoreFiles& replaced) {
  struct Space {
    std::string paths;
    uint64_t needed_bytes = 0, free_bytes = 0, given_back_bytes = 0;
  };
  std::map<uint64_t, Space> spaces;  // by file system
  for (uint32_t drive = 0; drive < folders.size(); ++drive) {
    DriveFolder& folder = *folders[drive];
    PENSTOCK_TRY_ASSIGN(existing, lock_existing(folder, name, options.existing));
    PENSTOCK_TRY_ASSIGN(free, folder.free_space());
    Space& space = spaces[free.file_system];
    space.paths += (space.paths.empty() ? "" : ", ") + folder.path();
    space.needed_bytes += layout.file_bytes(drive);
    space.free_bytes = free.bytes;
    if (!existing) continue;
    space.given_back_bytes += existing->size_bytes();
    replaced.push_back(std::move(existing));
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
      PENSTOCK_TRY_ASSIGN(file, folders[drive]->create_file(name, layout_.file_bytes(drive)));
      files_.push_back(std::move(file));
    }
    PENSTOCK_TRY(write_headers(StoreHeader::State::creating));
    const std::vector<std::byte> shape = shape_.encode();
    for (uint32_t copy = 0; copy < 2; ++copy) {
      PENSTOCK_TRY(write_on_all(engine_, files_, StoreLayout::shape_offset(copy, shape.size()), shape));
    }
    PENSTOCK_TRY(write_tiles(fill));
    PENSTOCK_TRY(write_table_and_root());
    return write_headers(StoreHeader::State::complete);
  }
  // How many drives have a file that was made here: the first ones.
  size_t files_made() const { return files_.size(); }

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
    for (uint32_t copy = 0; copy < 2; ++copy) {
      for (header.drive = 0; header.drive < files_.size(); ++header.drive) {
        header.file_bytes = layout_.file_bytes(header.drive);
        PENSTOCK_TRY(write_bytes(engine_, *files_[header.drive], StoreLayout::header_offset(copy), header.encode()));
      }
    }
    return flush_all(engine_, files_);
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
    StoreFiles replaced;
    PENSTOCK_TRY(check_space(folders, name, layout, options, replaced));
    if (options.existing == CreateOptions::Existing::replace) {
      for (const std::shared_ptr<DriveFolder>& folder : folders) PENSTOCK_TRY(folder->remove_file(name));
    }
  }
  std::optional<Creation> creation(std::in_place, engine, shape, layout, options);
  Status outcome = creation->run(folders, fill);
  if (outcome.ok()) return outcome;
  const size_t files_made = creation->files_made();
  creation.reset();
  for (const std::shared_ptr<DriveFolder>& folder : folders.first(files_made)) {
    Status removed = folder->remove_file(name);
    if (!removed.ok()) return outcome.within(removed.message());
  }
  return outcome;
}

}  // namespace penstock::aio
