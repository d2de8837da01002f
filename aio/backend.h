// IoBackend moves pieces. It is the part of file I/O in which io_uring, libaio, threads and memory differ.
// QueuedIoEngine does the rest: order, depth, short transfers, retries and refusals.
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

// One request to the kernel: at most a block of one file, or a flush of that file.
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

// Every submitted piece comes back from reap() exactly once, in any order. If the kernel refuses to take a piece, the
// refusal is its Completion. File and bytes must stay alive until then.
//
// Created, used and destroyed by one thread. REQUIRES: nothing is in flight when it is destroyed.
class IoBackend {
 public:
  virtual ~IoBackend() = default;

  // How many pieces may be in flight at once.
  virtual uint32_t capacity() const = 0;

  // Takes a piece. The next start() or reap() hands it to the kernel, if it is not there already.
  // REQUIRES: fewer than capacity() are in flight.
  virtual void submit(const Piece& piece) = 0;
  virtual void start() = 0;

  // Writes completions to `ended` and returns how many. If there are none yet, waits for one, at most `timeout`.
  virtual size_t reap(std::span<Completion> ended, std::chrono::nanoseconds timeout) = 0;

  // A hint: reap() may sleep until so many pieces have ended (initially one), because waking up costs more than a
  // piece. At least so many are in flight whenever it waits. A wrapper that delays completions must not forward this
  // hint.
  virtual void wake_after(uint32_t /*pieces*/) {}

  // Readable when reap() may have a completion. Created at the first call, because it costs something for every piece.
  // Only that call may be refused.
  virtual Result<int> completion_fd() = 0;

  // See IoEngine.
  virtual uint64_t register_memory(std::span<std::byte>) { return 0; }
  virtual void register_file(const File&) {}
  virtual void unregister_file(const File&) {}
  virtual std::string description() const = 0;
};

}  // namespace penstock::aio
