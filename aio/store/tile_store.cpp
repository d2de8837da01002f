#include "aio/store/tile_store.h"

#include <algorithm>
#include <set>
#include <utility>

#include "aio/store/store_parts.h"
#include "aio/store/tile_chunks.h"
#include "tiering/check.h"

namespace penstock::aio {
namespace {

std::vector<uint8_t> durable_slots(const StoreParts& parts) {
  std::vector<uint8_t> slots;
  for (TileId tile = 0; tile < parts.shape.tiles.size(); ++tile) {
    slots.push_back(static_cast<uint8_t>(parts.table.slot(tile)));
  }
  return slots;
}

}  // namespace

std::string store_file_name(uint32_t rank) { return text("rank", rank, ".tiles"); }

Result<std::unique_ptr<TileStore>> TileStore::open(IoEngine& engine, DriveFolders folders, const OpenOptions& options) {
  PENSTOCK_TRY_ASSIGN(parts, open_store(engine, folders, options));
  return std::unique_ptr<TileStore>(new TileStore(engine, std::move(parts), options.checksum));
}

TileStore::TileStore(IoEngine& engine, std::unique_ptr<StoreParts> parts, ChecksumFunction checksum)
    : engine_(engine),
      checksum_(checksum),
      parts_(std::move(parts)),
      tiles_(durable_slots(*parts_), parts_->layout.slots()),
      pages_(parts_->root.page_slots, parts_->layout.page_slots()),
      versions_(parts_->layout.slots(), TileTable(parts_->layout.shared_table())),
      writer_(engine, parts_->files, parts_->layout) {
  for (TileId tile = 0; tile < tiles_.tiles(); ++tile) {
    versions_[tiles_.current(tile)].set(tile, tiles_.current(tile), parts_->table.checksums(tile));
  }
  for (const std::unique_ptr<File>& file : parts_->files) engine_.register_file(*file);
}

TileStore::~TileStore() {
  engine_.wait_until([this] { return !writer_.busy(); });
  for (const std::unique_ptr<File>& file : parts_->files) engine_.unregister_file(*file);
}

std::string TileStore::id() const { return to_text(parts_->header.store); }
const StoreShape& TileStore::shape() const { return parts_->shape; }
const StoreLayout& TileStore::layout() const { return parts_->layout; }
const OpenReport& TileStore::open_report() const { return parts_->report; }
const RootPayload& TileStore::payload() const { return parts_->payload; }
const StateCapacity& TileStore::state_capacity() const { return parts_->header.state_capacity; }
const Status& TileStore::status() const { return status_; }

uint64_t TileStore::size_bytes() const {
  uint64_t sum = 0;
  for (const std::unique_ptr<File>& file : parts_->files) sum += file->size_bytes();
  return sum;
}

TileStore::Range TileStore::whole(TileId tile) const { return {0, parts_->layout.tile_bytes(tile)}; }

std::optional<TileStore::Reading> TileStore::begin_read(TileId tile, Range range, uint64_t lease_offset_bytes) {
  std::optional<uint32_t> slot = tiles_.try_begin_read(tile);
  if (!slot) return std::nullopt;
  TileSlot place{tile, *slot};
  return Reading{
      place,
      extents_of(parts_->layout, parts_->files, place, range.offset_bytes, range.length_bytes, lease_offset_bytes),
      versions_[*slot].checksums(tile)};
}

void TileStore::end_read(TileSlot place) { tiles_.end_read(place); }

Status TileStore::read_status(TileSlot slot, const Status& ended) const {
  return ended.ok() ? ended : ended.within(describe_tile(parts_->shape, slot.tile));
}

Status TileStore::checksum_mismatch(TileSlot slot, uint64_t checksum_number) const {
  const StoreShape& shape = parts_->shape;
  const TileBlock block = block_of(shape.layout(slot.tile), shape.tiles[slot.tile].elements, checksum_number);
  const BlockPlace place = place_of(parts_->layout, parts_->files, slot, block);
  return Status(Code::kCorrupt,
                text(block.length_bytes, " B at ", place.offset_bytes, " of ", place.file,
                     " fail the checksum they were written with: ", describe_block(shape, slot.tile, block)),
                "list every bad block with `penstock checkpoint scrub`; where one stays bad, put back a copy of the "
                "store's files, or make a new store with --force");
}

Result<std::optional<TileStore::Writing>> TileStore::begin_write(TileId tile, NewVersion version,
                                                                 uint64_t lease_offset_bytes) {
  CHECK(parts_->shape.kind(tile).updated, "tile ", tile, " is frozen");
  PENSTOCK_TRY(status_);
  const std::optional<Writing> not_yet;
  if (parts_->layout.slots() == 1 && parts_->root.state == RootRecord::State::whole) {
    CHECK(version == NewVersion::final, "a store of one slot has nothing to go back to");
    if (!committing()) mark_torn();
    return not_yet;
  }
  std::optional<uint32_t> slot = tiles_.try_begin_write(tile, version);
  if (!slot && parts_->layout.slots() == 1) return not_yet;
  if (!slot) return Status(Code::kEnvironment, text("write of tile ", tile, ": no slot is free"));
  TileSlot place{tile, *slot};
  Range all = whole(tile);
  return std::optional<Writing>{{place, extents_of(parts_->layout, parts_->files, place, all.offset_bytes,
                                                   all.length_bytes, lease_offset_bytes)}};
}

void TileStore::written(TileSlot place, std::span<const uint64_t> checksums) {
  versions_[place.slot].set(place.tile, place.slot, checksums);
  ended_write(place);
}

void TileStore::write_failed(TileSlot place, const Status& why) {
  if (!tiles_.is_unconfirmed(place) && tiles_.current(place.tile) == place.slot) fail(why);
  ended_write(place);
}

void TileStore::ended_write(TileSlot place) {
  tiles_.end_write(place);
  if (payload_under_way_ && status_.ok() && tiles_.landing() == 0 && !writer_.busy()) write_root();
}

void TileStore::confirm() { tiles_.confirm(); }
void TileStore::discard() { tiles_.discard(); }

std::string TileStore::committed_text() const {
  const uint64_t step = payload().step;
  const uint64_t later = payload_under_way_ ? payload_under_way_->step : root_under_way_.value_or(step);
  const std::string maybe = later > step ? text("step ", later, " may be") : std::string();
  if (parts_->root.state == RootRecord::State::torn) {
    return "no step is committed, for its state was being overwritten" + (maybe.empty() ? "" : "; " + maybe);
  }
  return text("step ", step, " is committed", maybe.empty() ? "" : ", and " + maybe);
}

bool TileStore::committing() const { return writer_.busy() || payload_under_way_.has_value(); }
void TileStore::set_barriers(CommitBarriers barriers) { barriers_ = std::move(barriers); }

void TileStore::commit(RootPayload payload, std::function<void(Status)> done) {
  if (!status_.ok()) return done(status_);
  CHECK(!committing(), "one commit at a time");
  if (const Status fits = payload.validate(state_capacity()); !fits.ok()) return done(fits.within("commit"));
  payload_under_way_ = std::move(payload);
  done_ = std::move(done);
  tiles_.seal();
  if (tiles_.landing() == 0) write_root();
}

Status TileStore::commit_and_wait(RootPayload payload) {
  std::optional<Status> verdict;
  commit(std::move(payload), [&](const Status& status) { verdict = status; });
  engine_.wait_until([&] { return verdict.has_value(); });
  return *verdict;
}

void TileStore::mark_torn() {
  RootRecord torn = next_root(RootRecord::State::torn);
  writer_.write({{}, torn}, barriers_, [this, torn](const Status& outcome) {
    if (!outcome.ok()) return fail(outcome);
    parts_->root = torn;
    tiles_.allow_in_place(true);
  });
}

void TileStore::write_root() {
  RootRecord root = next_root(RootRecord::State::whole);
  root.set(*payload_under_way_);
  root_under_way_ = payload_under_way_->step;
  RootWriter::Commit commit;
  commit.pages = changed_pages(root);
  commit.root = root;
  writer_.write(commit, barriers_, [this, root](const Status& outcome) { committed(root, outcome); });
}

RootRecord TileStore::next_root(RootRecord::State state) const {
  RootRecord next = parts_->root;
  next.sequence += 1;
  next.state = state;
  return next;
}

// Puts what the sealed slots hold and the state under way into the table, and each page that this changes into a free
// slot of its own.
std::vector<RootWriter::PlacedPage> TileStore::changed_pages(RootRecord& root) {
  const TableGeometry& geometry = parts_->layout.table();
  std::set<uint32_t> changed;
  for (TileId tile = 0; tile < tiles_.tiles(); ++tile) {
    const uint32_t slot = tiles_.sealed(tile);
    std::span<const uint64_t> before = parts_->table.checksums(tile), now = versions_[slot].checksums(tile);
    if (slot == parts_->table.slot(tile) && std::equal(before.begin(), before.end(), now.begin())) continue;
    parts_->table.set(tile, slot, now);
    for (uint32_t page = geometry.first_page(tile); page <= geometry.last_page(tile); ++page) changed.insert(page);
  }
  const std::vector<uint64_t> state = encode_state(*payload_under_way_, state_capacity());
  for (uint32_t page : parts_->table.set_state(state)) changed.insert(page);
  std::vector<RootWriter::PlacedPage> placed;
  for (uint32_t number : changed) {
    std::optional<uint32_t> slot = pages_.try_begin_write(number, NewVersion::final);
    CHECK(slot, geometry.page_name(number), " has no free slot");
    std::span<const uint64_t> words = parts_->table.page_words(number);
    TablePage page{root.store, number, root.sequence, root.step, {words.begin(), words.end()}};
    placed.push_back({number, *slot, page.encode(geometry.page_bytes())});
    parts_->page_hashes[number] = TablePage::hash_of(placed.back().bytes);
    root.page_slots[number] = static_cast<uint8_t>(*slot);
    pages_.end_write({number, *slot});
  }
  root.pages_digest = pages_digest(parts_->page_hashes);
  pages_.seal();
  return placed;
}

Status TileStore::refuse_removed() const {
  for (const std::unique_ptr<File>& file : parts_->files) {
    if (!file->is_removed()) continue;
    return Status(Code::kEnvironment, text("commit: ", file->path(), ": was removed while the store was in use"),
                  "go on from a copy of the store's files; what this process still has open is lost when it ends");
  }
  return Status();
}

void TileStore::committed(const RootRecord& root, const Status& outcome) {
  if (!outcome.ok()) return fail(outcome);
  if (Status removed = refuse_removed(); !removed.ok()) return fail(removed);
  if (!status_.ok()) return;  // the next step's write has failed meanwhile, and fail() has ended this commit
  parts_->payload = *std::exchange(payload_under_way_, std::nullopt);
  root_under_way_.reset();
  pages_.make_durable();
  tiles_.make_durable();
  tiles_.allow_in_place(false);
  parts_->root = root;
  // The next commit may begin inside.
  std::exchange(done_, nullptr)(Status());
}

void TileStore::fail(const Status& why) {
  if (status_.ok()) status_ = why;
  payload_under_way_.reset();
  if (done_) std::exchange(done_, nullptr)(status_);
}

Result<ScrubReport> TileStore::scrub(std::span<std::byte> memory, const ScrubProgress& progress) {
  return verify_tiles(engine_, *parts_, parts_->table, checksum_, memory, progress);
}

}  // namespace penstock::aio
