// DirectFile is a regular file read and written past the page cache, locked for one owner, of a size that never
// changes.
//
// Whether direct I/O works is tried, not guessed from the file system's name: also whether the bytes really go past the
// page cache, since some file systems say yes and buffer.
//
// The lock is an flock on the descriptor that the ring uses. The kernel keeps it until the last request on that
// descriptor has ended, so a second owner cannot start while a killed one's writes are still under way.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "tiering/io_engine.h"

namespace penstock::aio {

enum class Access { read_write, read_only };  // whoever only reads shares the lock with other readers
enum class Existing { refuse, replace };
enum class InMemory { refuse, allow };  // tmpfs: fine for a test, no place for a store

struct FileOptions {
  std::chrono::milliseconds lock_wait = std::chrono::seconds(10);
  InMemory in_memory = InMemory::refuse;
};

class DirectFile final : public File {
 public:
  // A new file of `size_bytes`, owner-only, its space allocated. Its blocks must be written once before they are used
  // in earnest (write_once below): the first write of a block costs more and may still find the drive full. Until
  // keep() is called the file is removed again when the object goes, so that a failure leaves nothing behind.
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

  // What a user should know, or empty: "made without copy-on-write, so that direct I/O stays direct".
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

// Fills `block`, which will lie at `offset_bytes` of the file.
using Fill = std::function<void(uint64_t offset_bytes, std::span<std::byte> block)>;

// Writes every block of `file` once, through the engine and as many pieces of `pool` as are free, and flushes. Without
// `fill` the blocks are zeros. Memory stays bounded by the pool whatever the size.
Status write_once(const File& file, IoEngine& engine, BufferPool& pool, const Fill& fill = {});

}  // namespace penstock::aio
