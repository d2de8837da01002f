// MemoryLimit: for the time of its life, no more than so many bytes besides those that there were. What would pass the
// limit is refused as a machine without memory refuses it. One at a time.
#pragma once

#include <cstdint>

namespace penstock::fuzz {

class MemoryLimit {
 public:
  explicit MemoryLimit(uint64_t bytes);
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

  // The request that was refused; 0 if none was.
  uint64_t refused_bytes() const;
};

}  // namespace penstock::fuzz
