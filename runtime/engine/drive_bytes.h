// DriveBytes counts what the drives were asked to read and to write.
#pragma once

#include <cstdint>

namespace penstock::engine {

struct DriveBytes {
  uint64_t read_bytes = 0, written_bytes = 0;

  DriveBytes operator+(const DriveBytes& other) const {
    return {read_bytes + other.read_bytes, written_bytes + other.written_bytes};
  }
  DriveBytes operator-(const DriveBytes& earlier) const {
    return {read_bytes - earlier.read_bytes, written_bytes - earlier.written_bytes};
  }
};

}  // namespace penstock::engine
