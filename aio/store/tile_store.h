// TileStore keeps every tile of a model in slots on one or several drives, and is its own checkpoint: a step writes
// free slots only, and then one root record, flushed on every drive, makes the step real.
//
// A step, as the store sees it:
//   begin_read(tile)    says where the current version lies, and its checksums; end_read() when the bytes have arrived.
//   begin_write(tile)   gives a free slot, if there is one; written(), with the checksums, when the write has ended.
//   confirm()           makes the unconfirmed writes since the last confirm() or discard() current.
//   discard()           drops them.
//   commit(payload)     makes everything written so far durable; runs inside engine.poll() and reports when it is done.
//
// The caller moves the bytes, by engine.read and engine.write with the extents given here, so a tile may be any part of
// a larger lease. The store itself only writes pages and roots, and flushes.
//
// A read that fails, or brings bytes that fail their checksums, is told to its caller, and the store stays usable.
// A failed flush, or a failed write of a page, of a root or of a tile that was not unconfirmed, is final: status()
// keeps it, every later write and root is refused with it, and the store must be opened again at its last root.
//
// Made, used and destroyed by the engine's thread. The engine outlives it; destroying it waits for its own requests.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/direct_file.h"
#include "aio/drive_folder.h"
#include "aio/store/commit_barriers.h"
#include "aio/store/root_writer.h"
#include "aio/store/tile_chunks.h"
#include "tiering/arithmetic/checksum.h"
#include "tiering/io_engine.h"
#include "tiering/store/root_record.h"
#include "tiering/store/slot_table.h"
#include "tiering/store/store_layout.h"
#include "tiering/store/store_shape.h"

namespace penstock::aio {

// The file of a rank's store on each of its drives.
std::string store_file_name(uint32_t rank);

// What no other run's stores have.
StoreId draw_store_id();

// The folders of one store, one for each drive, in any order.
using DriveFolders = std::span<const std::shared_ptr<DriveFolder>>;

struct CreateOptions {
  // 2, or 3 if commits are rarer than steps and updates are speculative. 1 halves the space, but a crash during a step
  // loses the store.
  uint32_t slots = 2;
  // The drives' measured rates, one for each folder; empty means equal. Tiles are spread in these shares.
  std::vector<double> rates;
  using Existing = aio::Existing;
  Existing existing = Existing::refuse;  // what is done about a whole store that is there already
  WeightPlacement weights = kDefaultWeightPlacement;
  // The room for the state beside the tiles, for as long as the store lives.
  StateCapacity state_capacity;
  RootPayload payload;             // of the state before the first step
  std::optional<StoreId> id = {};  // that of the run, where several ranks have a store each; none: one is drawn
  bool is_one_of_several = false;  // left half-made, for complete() once all ranks' are
  ChecksumFunction checksum = penstock::checksum;
  // Memory for tiles under way, cut into windows of kChunkBytes: at least one, kChunksUnderWay for full speed.
  std::span<std::byte> memory;
};

// Fills `bytes` with the initial state: the part of `tile`'s plane number `plane` that begins `first_byte` into the
// plane. Called for every byte once, at most kChunkBytes at a time, in the order of tiles, planes and bytes.
using FillTile = std::function<Status(TileId tile, uint32_t plane, uint64_t first_byte, std::span<std::byte> bytes)>;

// What was found at opening that the user should read: a copy that was restored from another one, steps that are lost,
// an older step taken after every block was verified.
struct OpenReport {
  std::vector<std::string> notes;
  // Headers, shapes, pages and roots that were unreadable or wrong while another copy is good.
  uint32_t bad_copies = 0;
};

// Called with the share of a long reading that is done. A refusal stops it and is returned.
using ScrubProgress = std::function<Status(double share)>;

struct OpenOptions {
  // inspect writes nothing, not even repairs, and takes the newest root even if it is in doubt, or torn by a crash with
  // --space single.
  enum class Purpose { run, inspect } purpose = Purpose::run;
  uint32_t rank = 0;
  ChecksumFunction checksum = penstock::checksum;
  // The newest step to take: what several ranks' stores all have. A root of a later one is given up for good.
  std::optional<uint64_t> newest_step = {};
  // Called while every block is verified because a root is in doubt.
  ScrubProgress verifying = {};
};

// A block that differs from what was written, or could not be read.
struct BadBlock {
  std::string file;
  uint64_t offset_bytes = 0;
  TileId tile = 0;
  std::string tensor;  // describe_block()
  Status unread;       // the drive's refusal where it could not be read; ok where it was read and differs
};

struct ScrubReport {
  uint64_t blocks = 0;
  std::vector<BadBlock> bad{};  // those that differ and those that could not be read
  uint64_t unread() const;
};

struct StoreParts;

class TileStore {
 public:
  // Makes the files, allocates every byte, fills the first slot of every tile by `fill`, and writes the first root. If
  // space is missing, refused before anything is touched; any later failure removes what was made. Until it has ended
  // the store is half-made and cannot be opened; another create() replaces such a one.
  static Status create(IoEngine& engine, DriveFolders folders, const StoreShape& shape, const CreateOptions& options,
                       const FillTile& fill);
  // Ends the making of one of several; refused where another has been made there since.
  static Status complete(IoEngine& engine, DriveFolders folders, uint32_t rank, const StoreId& id);

  // The bytes that create() would take in each folder.
  static std::vector<uint64_t> bytes_needed(const StoreShape& shape, uint32_t slots, uint32_t drives,
                                            const std::vector<double>& rates = {}, StateCapacity state = {});

  // Takes the locks and the newest root that can be believed. Writes nothing unless it succeeds.
  static Result<std::unique_ptr<TileStore>> open(IoEngine& engine, DriveFolders folders, const OpenOptions& options);

  ~TileStore();
  TileStore(const TileStore&) = delete;
  TileStore& operator=(const TileStore&) = delete;

  // 32 digits, drawn when the store was made.
  std::string id() const;
  const StoreShape& shape() const;
  const StoreLayout& layout() const;
  const OpenReport& open_report() const;
  // Of the newest durable root.
  const RootPayload& payload() const;
  // "step 12 is committed", and which later one may be: what opening the store again would find, for messages.
  std::string committed_text() const;
  const StateCapacity& state_capacity() const;
  const Status& status() const;
  uint64_t size_bytes() const;

  struct Reading {
    TileSlot place;
    std::vector<Extent> extents;
    std::span<const uint64_t> checksums;  // of the whole tile; until end_read()
  };
  // A run of a tile's bytes: one plane, several neighbouring ones, or all of them. Multiples of kAlignmentBytes.
  struct Range {
    uint64_t offset_bytes = 0;
    uint64_t length_bytes = 0;
  };
  // Where that range of the tile's current version lies. In the lease it begins at `lease_offset_bytes`. Nothing while
  // that version is still being written.
  std::optional<Reading> begin_read(TileId tile, Range range, uint64_t lease_offset_bytes = 0);
  std::optional<Reading> begin_read(TileId tile) { return begin_read(tile, whole(tile)); }
  Range whole(TileId tile) const;
  // The read has ended, well or not.
  void end_read(TileSlot place);
  // How a read of that slot has ended: a refusal is made to name the tile and its tensors.
  Status read_status(TileSlot place, const Status& ended) const;
  // The refusal of a block of that slot whose bytes do not have their checksum: which tensor, how many bytes, in which
  // file, where, and what to do.
  Status checksum_mismatch(TileSlot place, uint64_t checksum_number) const;

  struct Writing {
    TileSlot place;
    std::vector<Extent> extents;
  };
  // A free slot for the tile's next version. `unconfirmed` keeps the current version for a discard(). `final` is
  // current at once, and may take a slot whose version was never made durable.
  // Refused if the store has failed, or if no slot is free because a root still names it or I/O on it has not ended.
  // With one slot a tile, nothing means "not yet": a root that says so must be durable before the slot is overwritten.
  // Ask again when some I/O has ended.
  Result<std::optional<Writing>> begin_write(TileId tile, NewVersion version, uint64_t lease_offset_bytes = 0);
  // The write has ended well.
  void written(TileSlot place, std::span<const uint64_t> checksums);
  // The write has failed. Of an unconfirmed version, only discard() can follow; of another, the store has failed.
  void write_failed(TileSlot place, const Status& why);

  // The unconfirmed writes since the last confirm() or discard() become current, whether they have landed or not; or
  // they are dropped, and their slots are free as soon as their I/O has ended.
  void confirm();
  void discard();

  // Makes the current version of every tile durable together with `payload`, once every write begun so far has ended,
  // and calls `done` from inside engine.poll(). Reads and writes may go on meanwhile. Unconfirmed writes belong to the
  // next step and stay out of it. A payload that does not fit state_capacity() is refused,
  // and changes nothing. REQUIRES: not committing().
  void commit(RootPayload payload, std::function<void(Status)> done);
  // Blocks.
  Status commit_and_wait(RootPayload payload);
  bool committing() const;
  void set_barriers(CommitBarriers barriers);

  // A part of a store's file.
  struct FileRun {
    std::string file;
    uint64_t offset_bytes = 0;
    uint64_t length_bytes = 0;
  };
  // What a copy of the newest durable step must have, file by file and ascending: all records and pages, and of every
  // tile that steps update the slot that the durable root names. Tiles that are never updated are in no copy, but for a
  // store of one slot, which cannot take back a copy tile by tile.
  std::vector<FileRun> runs_of_durable_step() const;
  // Whether become() will do: refuses a copy of another store, and one with a damaged block that it would read.
  Status check_copy(TileStore& copy, std::span<std::byte> memory, const ScrubProgress& progress = {}) const;
  // Whether a copy of it will do: refuses a damaged block of what steps update. REQUIRES: no commit meanwhile.
  Status check_durable_step(std::span<std::byte> memory, const ScrubProgress& progress = {}) const;
  // Becomes what `copy` is, a copy of this store as above, by one commit: until it is durable, this one is as it was.
  // Writes only tiles that differ or are damaged here, and checks all that it reads. `memory` as in CreateOptions.
  // Blocks. REQUIRES: two slots or more; no commit meanwhile, and nothing unconfirmed.
  Status become(TileStore& copy, std::span<std::byte> memory, const ScrubProgress& progress = {});

  // Reads everything that the newest durable root names and compares every checksum. `memory` as in CreateOptions.
  // Blocks. REQUIRES: no commit meanwhile.
  Result<ScrubReport> scrub(std::span<std::byte> memory, const ScrubProgress& progress = {});

 private:
  TileStore(IoEngine& engine, std::unique_ptr<StoreParts> parts, ChecksumFunction checksum);

  void ended_write(TileSlot place);
  void mark_torn();
  void write_root();
  RootRecord next_root(RootRecord::State state) const;
  std::vector<RootWriter::PlacedPage> changed_pages(RootRecord& root);
  Status refuse_removed() const;
  void committed(const RootRecord& root, const Status& outcome);
  void fail(const Status& why);

  IoEngine& engine_;
  const ChecksumFunction checksum_;
  const std::unique_ptr<StoreParts> parts_;

  SlotTable tiles_;
  SlotTable pages_;
  // By slot: the checksums of what was last written there.
  std::vector<TileTable> versions_;

  RootWriter writer_;
  CommitBarriers barriers_;
  std::optional<RootPayload> payload_under_way_;
  std::optional<uint64_t> root_under_way_;  // of which step; what has failed of it may be on the drives all the same
  std::function<void(Status)> done_;
  Status status_;
};

}  // namespace penstock::aio
