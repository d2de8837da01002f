// DirectFile is a regular file of fixed size. It is read and written past the page cache, and locked for one owner.
//
// Whether direct I/O works is tested, not guessed from the file system's name. The test includes whether the bytes
// really bypass the page cache, because some file systems accept direct I/O and buffer it.
//
// The lock is an flock on the descriptor that the ring uses. The kernel keeps it until the last request on that
// descriptor has ended, so a new owner cannot start while writes of a killed one are still in flight.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tiering/io_engine.h"

namespace penstock::aio {

enum class Access { read_write, read_only };  // readers share the lock
enum class Existing { refuse, replace };
enum class InMemory { refuse, allow };  // tmpfs is fine for tests, not for a store

struct FileOptions {
  std::chrono::milliseconds lock_wait = std::chrono::seconds(10);
  InMemory in_memory = InMemory::refuse;
};

// Whether another process has the file at `path` for itself.
bool is_taken(const std::string& path);
Status taken_refusal(const std::string& path, std::chrono::milliseconds waited);

class DirectFile final : public File {
 public:
  // Creates a file of `size_bytes` with mode 0600 and allocates its space. Write each block once before relying on it
  // (write_once()): the first write of a block costs more and may still find the drive full. Unless keep() is
  // called, the destructor removes the file, so that a failure leaves nothing behind.
  static Result<std::unique_ptr<DirectFile>> create(const std::string& path, uint64_t size_bytes,
                                                    Existing existing = Existing::refuse, FileOptions options = {});
  static Result<std::unique_ptr<DirectFile>> open(const std::string& path, Access access = Access::read_write,
                                                  FileOptions options = {});
  ~DirectFile() override;
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  void keep() { remove_at_end_ = false; }

  const std::string& path() const override { return path_; }
  uint64_t size_bytes() const override { return size_bytes_; }
  uint64_t alignment_bytes() const override { return alignment_bytes_; }
  uint32_t drive() const override { return drive_; }
  int descriptor() const override { return fd_; }
  bool is_removed() const override;

  // A remark for the user, or empty: "created without copy-on-write, so that direct I/O stays direct".
  const std::string& note() const { return note_; }

 private:
  explicit DirectFile(std::string path) : path_(std::move(path)) {}
  Status open_descriptor(int flags);
  Status lock(Access access, std::chrono::milliseconds wait);
  Status look_at_drive(InMemory in_memory);
  Status refuse_holes(int64_t blocks) const;
  Status allocate(uint64_t size_bytes);
  Status find_alignment();
  Status try_direct(Access access, bool may_write);

  const std::string path_;
  int fd_ = -1;
  uint64_t size_bytes_ = 0;
  uint64_t alignment_bytes_ = 0;
  uint32_t drive_ = 0;
  std::string file_system_;
  std::string note_;
  bool remove_at_end_ = false;
};

}  // namespace penstock::aio
