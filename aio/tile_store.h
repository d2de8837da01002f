// TileStore keeps every tile of a model in slots on one or several drives, and is its own checkpoint: a step writes
// free slots only, and one root record, flushed on every drive, makes the step real.
//
// A step, as the store sees it:
//   begin_read(tile)    where its current version lies, and its checksums; end_read() when those bytes have arrived.
//   begin_write(tile)   a free slot, if there is one yet; written() with the checksums when the write has ended.
//   confirm()           the speculative writes since the last confirm or discard are the truth. discard(): they are
//   not. commit(payload)     makes everything written so far durable; goes on inside engine.poll() and tells when it
//   is.
//
// The caller moves the bytes (engine.read, engine.write with the extents given here), so that a tile may be any part
// of a larger lease. The store itself only writes table pages, roots and flushes.
//
// A failed flush, root or page write is final: status() keeps it, everything later is refused, and the store must be
// opened again, from its last root. So is a failed write that was not speculative.
//
// Made, used and destroyed by the engine's thread. The engine outlives it; destroying it waits for its own requests.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/drive_folder.h"
#include "tiering/checksum.h"
#include "tiering/io_engine.h"
#include "tiering/root_record.h"
#include "tiering/slot_table.h"
#include "tiering/store_layout.h"
#include "tiering/store_shape.h"

namespace penstock::aio {

// The folders of one store, one for each drive, in any order.
using DriveFolders = std::span<const std::shared_ptr<DriveFolder>>;

struct CreateOptions {
  // 2, or 3 where commits are rarer than steps and updates are speculative. 1 halves the space, and a crash during a
  // step loses the store.
  uint32_t slots = 2;
  // The drives' measured rates, one for each folder; empty means equal. Tiles are spread in these shares.
  std::vector<double> weights;
  // What is done about a store, whole or half-created, that is there already.
  enum class Existing { refuse, replace } existing = Existing::refuse;
  RootPayload payload;  // of the state before the first step
  ChecksumFunction checksum = penstock::checksum;
  // Memory for the tiles on their way, cut into pieces of kCreatePieceBytes: at least 2 of them, 8 for full speed.
  std::span<std::byte> memory;
};
constexpr uint64_t kCreatePieceBytes = 4 * kMiB;

// Fills `bytes` with the initial state: the part of `tile`'s plane number `plane` that begins `first_byte` into the
// plane. Asked for in the order of tiles, planes and bytes, every byte once, at most kCreatePieceBytes at a time.
using FillTile = std::function<Status(TileId tile, uint32_t plane, uint64_t first_byte, std::span<std::byte> bytes)>;

// What was found at opening that the user should read: a copy restored from a mirror, an older step taken after every
// block was verified.
struct OpenReport {
  std::vector<std::string> notes;
};

struct OpenOptions {
  // inspect writes nothing, not even repairs; a store left open by `space: single` may be inspected.
  enum class Access { run, inspect } access = Access::run;
  // What the caller means to find; null: whatever is there.
  const StoreShape* expected_shape = nullptr;
  ChecksumFunction checksum = penstock::checksum;
};

// Lets several ranks commit together. Each function is called at its point with a continuation, which it calls once,
// at once or later on the same thread, with the verdict of all ranks. Empty functions stand for a single rank.
struct CommitBarriers {
  using Continue = std::function<void(Status)>;
  std::function<void(Status mine, Continue)> data_flushed;
  std::function<void(Status mine, Continue)> root_flushed;
};

struct BadBlock {
  std::string file;
  uint64_t offset_bytes = 0;
  TileId tile = 0;
  std::string tensor;  // describe_block()
};

struct ScrubReport {
  uint64_t blocks = 0;
  std::vector<BadBlock> bad;
};

// Bytes written that are no tile, on all drives together.
struct StoreCounters {
  uint64_t commits = 0;
  uint64_t page_bytes = 0;
  uint64_t root_bytes = 0;
};

class TileStore {
 public:
  // Makes the files, preallocates every byte, writes the first slot of every tile as `fill` says, and the first root.
  // Refused before anything is touched when the space is not there; a failure removes what was made.
  static Status create(IoEngine& engine, DriveFolders folders, const StoreShape& shape, const CreateOptions& options,
                       const FillTile& fill);

  // The bytes that create() would take in each folder.
  static std::vector<uint64_t> bytes_needed(const StoreShape& shape, uint32_t slots, std::vector<double> weights);

  // Takes the locks and the newest root that can be believed; touches nothing unless it succeeds.
  static Result<std::unique_ptr<TileStore>> open(IoEngine& engine, DriveFolders folders, const OpenOptions& options);

  ~TileStore();
  TileStore(const TileStore&) = delete;
  TileStore& operator=(const TileStore&) = delete;

  const StoreShape& shape() const;
  const StoreLayout& layout() const;
  const OpenReport& open_report() const;
  // Of the newest durable root.
  const RootPayload& payload() const;
  const Status& status() const;
  uint64_t size_bytes() const;
  StoreCounters counters() const;

  struct Reading {
    TileSlot place;
    std::vector<Extent> extents;
    std::span<const uint64_t> checksums;  // of the whole tile; until end_read()
  };
  // A run of a tile's bytes: one plane, several neighbouring ones, or all of them. Multiples of kSegmentAlignmentBytes.
  struct Range {
    uint64_t offset_bytes = 0;
    uint64_t length_bytes = 0;
  };
  // Where that range of the tile's current version lies; the first byte's place in the lease is `lease_offset_bytes`.
  // Nothing while that version is still being written.
  std::optional<Reading> begin_read(TileId tile, Range range, uint64_t lease_offset_bytes = 0);
  std::optional<Reading> begin_read(TileId tile) { return begin_read(tile, whole(tile)); }
  Range whole(TileId tile) const;
  // The bytes have arrived or never will.
  void end_read(TileSlot place);

  struct Writing {
    TileSlot place;
    std::vector<Extent> extents;
  };
  // A free slot for the tile's next version; nothing while there is none: the root that still names one is not durable
  // yet, or I/O on it has not ended. `speculative` keeps the current version for a discard(). `final` is current at
  // once, and may take a slot whose version was never made durable.
  std::optional<Writing> begin_write(TileId tile, Update update, uint64_t lease_offset_bytes = 0);
  // The write has ended well.
  void written(TileSlot place, std::span<const uint64_t> checksums);
  // The write has failed. If it was speculative, only discard() can follow; else the store has failed.
  void write_failed(TileSlot place, const Status& why);

  // The speculative writes since the last confirm() or discard() become current, landed or not; or are dropped, and
  // their slots are free as soon as their I/O has ended.
  void confirm();
  void discard();

  // Makes the current version of every tile durable together with `payload`, once every write begun so far has ended;
  // calls `done` from inside engine.poll(). Later reads and writes go on meanwhile.
  // REQUIRES: no commit under way, no unconfirmed write.
  void commit(RootPayload payload, std::function<void(Status)> done);
  bool committing() const;
  void set_barriers(CommitBarriers barriers);

  // Reads everything that the newest durable root names and compares every checksum. `memory` as in CreateOptions.
  Result<ScrubReport> scrub(std::span<std::byte> memory);

 private:
  struct State;
  explicit TileStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock::aio
