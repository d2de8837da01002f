// IoEngine reads and writes aligned runs of files, many at a time. File is what it needs to know of one.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>

#include "tiering/transfer.h"

namespace penstock {

// An open file whose size never changes. Two files of one drive() share its queue and its bandwidth.
class File {
 public:
  virtual ~File() = default;
  virtual const std::string& path() const = 0;
  virtual uint64_t size_bytes() const = 0;
  // Offsets, lengths and addresses are multiples of it; divides kAlignmentBytes.
  virtual uint64_t alignment_bytes() const = 0;
  virtual uint32_t drive() const = 0;
  // The descriptor that requests use and that carries the lock; -1 for a file that is not the kernel's.
  virtual int descriptor() const = 0;
  // Removed under us: what it holds is gone once it is closed.
  virtual bool is_removed() const { return false; }

  // After a failed flush nobody knows which writes have reached the drive, and asking again may say "all" (the kernel
  // has dropped what it could not write). So the file takes no more writes from any engine; its owner opens it anew.
  bool flush_failed() const { return flush_failed_; }
  void note_failed_flush() const { flush_failed_ = true; }

 private:
  mutable bool flush_failed_ = false;
};

// A run of a file and the place in the lease where it lies in memory.
struct Extent {
  const File* file = nullptr;
  uint64_t offset_bytes = 0;
  uint64_t lease_offset_bytes = 0;
  uint64_t length_bytes = 0;
};

// What has happened on one drive since the engine was made.
struct DriveCounters {
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t reads = 0;
  uint64_t writes = 0;
  uint64_t flushes = 0;
  uint64_t bytes_in_flight = 0;
  uint64_t bytes_queued = 0;
};

// Every accepted request ends exactly once, in any order. Until then the engine holds the request's Lease, so its bytes
// cannot be reused or freed. Requests are cut into pieces of the drive's block size; a bounded number of pieces is with
// the kernel, the rest wait, earliest deadline first, reads and writes alternating.
//
// Made, used and destroyed by one thread. Destroying it cancels what waits and drains what is with the kernel.
class IoEngine : public TransferDriver {
 public:
  // A request with an earlier deadline is issued first; equal deadlines in order of arrival. Only the order counts, so
  // a plan may use its move numbers.
  using Deadline = uint64_t;
  static constexpr Deadline kWhenever = std::numeric_limits<Deadline>::max();

  // Fills the extents' places in `into`. Ends well only when every byte has arrived: short reads are continued here. A
  // refusal names file, offset, length and errno.
  // REQUIRES: extents lie inside their files and inside the lease and are aligned; no two overlap in the lease.
  virtual Transfer read(std::span<const Extent> extents, Lease into, Deadline deadline) = 0;
  // Likewise, out of `from`. What has ended well is with the drive, but durable only after a later flush.
  virtual Transfer write(std::span<const Extent> extents, Lease from, Deadline deadline) = 0;
  // Makes durable every write to `file`'s drive that had ended when this was called. A failed flush is final: every
  // later write or flush of that file is refused. The lease that comes back is empty.
  virtual Transfer flush(const File& file) = 0;

  Transfer read(const File& file, uint64_t offset_bytes, Lease into, Deadline deadline = kWhenever) {
    Extent whole{&file, offset_bytes, 0, into.size_bytes()};
    return read({&whole, 1}, std::move(into), deadline);
  }
  Transfer write(const File& file, uint64_t offset_bytes, Lease from, Deadline deadline = kWhenever) {
    Extent whole{&file, offset_bytes, 0, from.size_bytes()};
    return write({&whole, 1}, std::move(from), deadline);
  }

  // Issues what may be issued and ends what has ended, without blocking; functions given to then() run inside. Returns
  // how many transfers ended.
  virtual size_t poll() = 0;
  // As poll(), but blocks until something has ended, nothing is left to wait for, or `timeout` has passed.
  virtual size_t wait(std::chrono::nanoseconds timeout) = 0;
  // Blocks until `done`, or nothing is left to wait for. Checks `done` after each completion and a few times a second.
  // Cheaper than wait() in a loop: what functions given to then() ask for goes to the drives in the call that waits on.
  virtual void wait_until(const std::function<bool()>& done) = 0;
  // Readable when poll() may have something to end: for one thread that waits on drives, copies and messages at once.
  // Only the first call may be refused.
  virtual Result<int> completion_fd() const = 0;
  // How long the caller may skip polling, so that it then finds several completions at once while no drive has run dry.
  // Being woken for each completion costs drives whose bytes pass through the processors a sixth of their rate. Zero
  // means: do not pause, every completion matters.
  virtual std::chrono::nanoseconds poll_pause() const = 0;

  // Ends every request that is not with the kernel yet with ECANCELED and waits for the others.
  virtual void cancel_and_drain() = 0;

  // Makes transfers from and to this memory cheaper where the engine can; says in the result how much it took.
  virtual uint64_t register_memory(std::span<std::byte> memory) = 0;

  // Likewise for a file. It must not be closed, nor can its lock pass to another, until unregister_file().
  virtual void register_file(const File& file) = 0;
  virtual void unregister_file(const File& file) = 0;

  // The engine that really runs and why, for people: "io_uring (registered buffers and files, deferred task running)".
  virtual std::string description() const = 0;
  virtual DriveCounters counters(uint32_t drive) const = 0;
};

}  // namespace penstock
