// MemoryFile and MemoryBackend: files that are memory, so that what stands above an engine can be tested in
// microseconds, deterministically, without a drive.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "aio/backend.h"
#include "aio/event_fd.h"

namespace penstock::aio {

class MemoryFile final : public File {
 public:
  using Bytes = std::vector<std::byte>;

  MemoryFile(std::string path, uint64_t size_bytes, uint32_t drive = 0, uint64_t alignment_bytes = kAlignmentBytes);
  // Opens bytes that outlive this file object, as a drive's do.
  MemoryFile(std::string path, std::shared_ptr<Bytes> bytes, uint32_t drive = 0,
             uint64_t alignment_bytes = kAlignmentBytes);

  const std::string& path() const override { return path_; }
  uint64_t size_bytes() const override { return bytes_->size(); }
  uint64_t alignment_bytes() const override { return alignment_bytes_; }
  uint32_t drive() const override { return drive_; }
  int descriptor() const override { return -1; }

  std::span<std::byte> bytes() const { return *bytes_; }

 private:
  const std::string path_;
  const uint32_t drive_;
  const uint64_t alignment_bytes_;
  const std::shared_ptr<Bytes> bytes_;  // a File is const to those who write to it, as a descriptor is
};

// Moves every piece at once, when it is submitted; pieces end in that order. Refuses what is not aligned, as a drive
// does. REQUIRES: every file is a MemoryFile.
class MemoryBackend final : public IoBackend {
 public:
  uint32_t capacity() const override { return 256; }
  void submit(const Piece& piece) override;
  void start() override {}
  size_t reap(std::span<Completion> ended, std::chrono::nanoseconds timeout) override;
  Result<int> completion_fd() override { return event_fd_.make(); }
  std::string description() const override { return "memory"; }

 private:
  std::deque<Completion> ended_;
  EventFd event_fd_;
};

}  // namespace penstock::aio
