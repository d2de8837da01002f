// DriveQueue holds what waits for one drive and says what goes to it next.
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

// How a drive likes to be asked. 1 MiB is one request to most drives; larger ones are merged or split on the way.
struct DriveOptions {
  uint32_t block_bytes = 1024 * 1024;
  uint32_t depth = 16;
};

// One accepted transfer. It ends when the last of its runs has.
struct Request : TransferState {
  Request(TransferDriver& driver, Lease held, Operation kind, IoEngine::Deadline due)
      : TransferState(driver, std::move(held)), operation(kind), deadline(due) {}

  const Operation operation;
  const IoEngine::Deadline deadline;
  uint32_t open_runs = 0;  // those that wait and those with the backend
  Status refusal;          // the first one
};

// A run of a file that still has to move: an extent as long as it waits, a piece of it once it is with the backend.
struct Run {
  std::shared_ptr<Request> request;
  const File* file = nullptr;
  uint64_t offset_bytes = 0;
  std::byte* data = nullptr;
  uint64_t length_bytes = 0;
  uint64_t arrival = 0;   // the order among equal deadlines; what is left of a short piece keeps its place
  uint32_t attempts = 0;  // without progress
};

class DriveQueue {
 public:
  DriveQueue(uint32_t drive, DriveOptions options) : drive_(drive), options_(options) {}

  void push(Run run);

  // The next piece, if the drive has room for one: flushes first, then reads and writes in turn, because drives are
  // slower when they do one after the other, each by deadline.
  std::optional<Run> next_piece();
  // One piece has come back.
  void piece_ended() { --in_flight_; }
  // That many bytes of one have moved.
  void note_moved(Operation operation, uint64_t bytes);

  bool may_issue() const { return in_flight_ < options_.depth && !empty(); }
  bool empty() const { return flushes_.empty() && reads_.empty() && writes_.empty(); }
  // Takes out everything that waits.
  std::vector<Run> take_all();

  uint32_t drive() const { return drive_; }
  uint32_t in_flight() const { return in_flight_; }
  // How long the drive is busy with what is with it; zero as long as that is not known.
  std::chrono::nanoseconds busy_for() const { return rate_.time_for(counters_.bytes_in_flight); }
  DriveCounters& counters() { return counters_; }
  const DriveCounters& counters() const { return counters_; }

 private:
  Run cut_piece(std::vector<Run>& heap);

  const uint32_t drive_;
  const DriveOptions options_;
  uint32_t in_flight_ = 0;
  bool read_is_next_ = true;
  std::deque<Run> flushes_;
  std::vector<Run> reads_;  // heaps, the most urgent at the front
  std::vector<Run> writes_;
  DriveCounters counters_;
  RecentRate rate_;
};

}  // namespace penstock::aio
