#include "tests/support/memory_backend.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tiering/check.h"

namespace penstock::aio {

MemoryFile::MemoryFile(std::string path, uint64_t size_bytes, uint32_t drive, uint64_t alignment_bytes)
    : MemoryFile(std::move(path), std::make_shared<Bytes>(size_bytes), drive, alignment_bytes) {}

MemoryFile::MemoryFile(std::string path, std::shared_ptr<Bytes> bytes, uint32_t drive, uint64_t alignment_bytes)
    : path_(std::move(path)), drive_(drive), alignment_bytes_(alignment_bytes), bytes_(std::move(bytes)) {}

void MemoryBackend::submit(const Piece& piece) {
  const auto* file = dynamic_cast<const MemoryFile*>(piece.file);
  CHECK(file != nullptr, piece.file->path(), " is not a MemoryFile");
  const uint64_t alignment = file->alignment_bytes();
  const bool aligned = piece.offset_bytes % alignment == 0 && piece.length_bytes % alignment == 0 &&
                       reinterpret_cast<uintptr_t>(piece.data) % alignment == 0;
  if (piece.operation != Operation::flush && aligned) {
    const std::span<std::byte> place = file->bytes().subspan(piece.offset_bytes, piece.length_bytes);
    if (piece.operation == Operation::read) {
      std::memcpy(piece.data, place.data(), place.size());
    } else {
      std::memcpy(place.data(), piece.data, place.size());
    }
  }
  ended_.push_back({piece.tag, aligned ? static_cast<int32_t>(piece.length_bytes) : -EINVAL});
  event_fd_.signal();
}

size_t MemoryBackend::reap(std::span<Completion> ended, std::chrono::nanoseconds) {
  const size_t count = std::min(ended.size(), ended_.size());
  std::copy_n(ended_.begin(), count, ended.begin());
  ended_.erase(ended_.begin(), ended_.begin() + static_cast<ptrdiff_t>(count));
  if (ended_.empty()) event_fd_.drain();
  return count;
}

}  // namespace penstock::aio
