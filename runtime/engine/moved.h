// Moved counts what the drives were asked to read and to write.
#pragma once

#include <cstdint>

namespace penstock::engine {

struct Moved {
  uint64_t read_bytes = 0, written_bytes = 0;

  Moved operator+(const Moved& other) const {
    return {read_bytes + other.read_bytes, written_bytes + other.written_bytes};
  }
  Moved operator-(const Moved& earlier) const {
    return {read_bytes - earlier.read_bytes, written_bytes - earlier.written_bytes};
  }
};

}  // namespace penstock::engine
