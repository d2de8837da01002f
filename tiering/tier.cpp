#include "tiering/tier.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>

namespace penstock {

std::string bytes_text(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < kKiB) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / kKiB;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  char out[32];
  std::snprintf(out, sizeof out, "%.2f %s", value, kUnits[unit]);
  return out;
}

std::string fixed(double value, int digits) {
  // The largest double has 309 digits before its point.
  std::array<char, 400> room;
  const int length = std::snprintf(room.data(), room.size(), "%.*f", digits, value);
  return std::string(room.data(), std::min(static_cast<size_t>(length), room.size() - 1));
}

}  // namespace penstock
