// Scratch folders, buffers full of telling bytes, and pools for the tests of aio.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "aio/direct_file.h"
#include "tiering/buffer.h"

namespace penstock::aio {

// A folder of its own, removed with all that is in it.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string pattern = (parent / "penstock-test-XXXXXX").string();
    CHECK(mkdtemp(pattern.data()) != nullptr, "no scratch folder ", pattern, ": errno ", errno);
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// What a word of a file must be, so that a byte from anywhere else is wrong.
inline uint64_t telling_word(uint64_t seed, uint64_t offset_bytes) {
  uint64_t word = (offset_bytes / 8 + 1) * 0x9e3779b97f4a7c15 + seed * 0xc2b2ae3d27d4eb4f;
  return word ^ (word >> 29);
}

inline void fill_telling(std::span<std::byte> bytes, uint64_t seed, uint64_t offset_bytes) {
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t word = telling_word(seed, offset_bytes + i);
    std::memcpy(&bytes[i], &word, 8);
  }
}

// The offset of the first wrong word, or -1.
inline int64_t first_wrong(std::span<const std::byte> bytes, uint64_t seed, uint64_t offset_bytes) {
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t word = telling_word(seed, offset_bytes + i);
    if (std::memcmp(&bytes[i], &word, 8) != 0) return static_cast<int64_t>(offset_bytes + i);
  }
  return -1;
}

// A lease on memory of its own.
class OwnMemory {
 public:
  explicit OwnMemory(uint64_t bytes) : buffer_(Buffer::on_heap(bytes)) {}
  Lease lease() const { return Lease::over(Tier::host, buffer_.bytes()); }
  Lease lease(uint64_t offset_bytes, uint64_t bytes) const {
    return Lease::over(Tier::host, buffer_.bytes().subspan(offset_bytes, bytes));
  }
  std::span<std::byte> bytes() const { return buffer_.bytes(); }

 private:
  Buffer buffer_;
};

}  // namespace penstock::aio
