// IoBackend moves pieces: the part of file I/O in which io_uring, libaio, threads and memory differ. QueuedIoEngine has
// the rest: order, depth, short transfers, retries, what becomes of a refusal.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tiering/io_engine.h"

namespace penstock::aio {

enum class Operation : uint8_t { read, write, flush };

const char* name_of(Operation operation);

// One request to the kernel: a run of one file of at most a block, or a flush of it.
struct Piece {
  Operation operation = Operation::read;
  const File* file = nullptr;
  uint64_t offset_bytes = 0;
  std::byte* data = nullptr;
  uint32_t length_bytes = 0;
  uint32_t tag = 0;  // comes back in the Completion
};

struct Completion {
  uint32_t tag = 0;
  int32_t result = 0;  // bytes moved, or -errno
};

// Every submitted piece comes back from reap() exactly once, in any order, and whatever went wrong: also a refusal to
// take the piece is a Completion. File and bytes stay alive until then.
//
// Made, used and destroyed by one thread. REQUIRES: nothing is under way when it is destroyed.
class IoBackend {
 public:
  virtual ~IoBackend() = default;

  // How many pieces may be under way at once.
  virtual uint32_t capacity() const = 0;

  // Takes a piece; the next start() or reap() at the latest hands it to the kernel.
  // REQUIRES: fewer than capacity() are under way.
  virtual void submit(const Piece& piece) = 0;
  virtual void start() = 0;

  // Moves what has ended into `ended` and returns how many. If there is nothing yet, waits for it, but not longer than
  // `timeout`.
  virtual size_t reap(std::span<Completion> ended, std::chrono::nanoseconds timeout) = 0;

  // A hint: reap() may sleep until so many have ended (one at first), because to wake costs more than a piece. They are
  // under way whenever it waits. Who holds back what has ended does not pass it on.
  virtual void wake_after(uint32_t /*pieces*/) {}

  // Readable when reap() may have something. Made at the first call, which may be refused, because it costs something
  // for every piece.
  virtual Result<int> completion_fd() = 0;

  // See IoEngine.
  virtual uint64_t register_memory(std::span<std::byte>) { return 0; }
  virtual void register_file(const File&) {}
  virtual void unregister_file(const File&) {}
  virtual std::string description() const = 0;
};

}  // namespace penstock::aio
