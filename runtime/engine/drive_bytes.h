// DriveBytes counts what the drives were asked to read and to write, and what of the plan they were not: weights that
// were found where updates had left them (see PlanRun).
#pragma once

#include <cstdint>

namespace penstock::engine {

struct DriveBytes {
  uint64_t read_bytes = 0, written_bytes = 0, found_bytes = 0;

  DriveBytes operator+(const DriveBytes& other) const {
    return {read_bytes + other.read_bytes, written_bytes + other.written_bytes, found_bytes + other.found_bytes};
  }
  DriveBytes operator-(const DriveBytes& earlier) const {
    return {read_bytes - earlier.read_bytes, written_bytes - earlier.written_bytes, found_bytes - earlier.found_bytes};
  }
};

}  // namespace penstock::engine
