// DriveQueue holds the I/O that waits for one drive and decides which piece goes next.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "aio/backend.h"
#include "aio/recent_rate.h"
#include "tiering/transfer.h"

namespace penstock::aio {

// How requests are sent to a drive. Most drives take 1 MiB as one request; larger ones are split on the way.
struct DriveOptions {
  uint32_t block_bytes = 1024 * 1024;
  uint32_t depth = 16;
};

// One accepted transfer. It ends when the last of its parts has ended.
struct Request : TransferState {
  Request(TransferDriver& driver, Lease held, Operation kind, IoEngine::Deadline due)
      : TransferState(driver, std::move(held)), operation(kind), deadline(due) {}

  const Operation operation;
  const IoEngine::Deadline deadline;
  uint32_t open_parts = 0;  // waiting here or with the backend
  Status refusal;           // the first one
};

// Bytes of a file that still have to move: an extent while it waits, a piece of it once it is with the backend.
struct PendingIo {
  std::shared_ptr<Request> request;
  const File* file = nullptr;
  uint64_t offset_bytes = 0;
  std::byte* data = nullptr;
  uint64_t length_bytes = 0;
  uint64_t arrival = 0;   // orders equal deadlines; the rest of a short piece keeps its place
  uint32_t attempts = 0;  // without progress
};

class DriveQueue {
 public:
  DriveQueue(uint32_t drive, DriveOptions options) : drive_(drive), options_(options) {}

  void push(PendingIo pending);

  // The next piece, if the drive has room for one. Flushes go first. Reads and writes alternate, each by deadline,
  // because drives are slower when all reads come first and then all writes.
  std::optional<PendingIo> next_piece();
  // One piece has come back from the backend.
  void piece_ended() { --in_flight_; }
  // So many bytes of a piece have moved.
  void note_moved(Operation operation, uint64_t bytes);

  bool may_issue() const { return in_flight_ < options_.depth && !empty(); }
  bool empty() const { return flushes_.empty() && reads_.empty() && writes_.empty(); }
  // Removes and returns everything that waits.
  std::vector<PendingIo> take_all();

  uint32_t drive() const { return drive_; }
  uint32_t in_flight() const { return in_flight_; }
  // How long the drive will take for what is in flight; zero while its rate is unknown.
  std::chrono::nanoseconds busy_for() const { return rate_.time_for(counters_.bytes_in_flight); }
  DriveCounters& counters() { return counters_; }
  const DriveCounters& counters() const { return counters_; }

 private:
  PendingIo cut_piece(std::vector<PendingIo>& heap);

  const uint32_t drive_;
  const DriveOptions options_;
  uint32_t in_flight_ = 0;
  bool read_is_next_ = true;
  std::deque<PendingIo> flushes_;
  std::vector<PendingIo> reads_;  // heaps, the most urgent at the front
  std::vector<PendingIo> writes_;
  DriveCounters counters_;
  RecentRate rate_;
};

}  // namespace penstock::aio
