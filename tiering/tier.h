// The three tiers, and the granularities that all of them share. Bytes rest on NVMe, in host memory, or on the device
// that computes with them; what rests elsewhere passes through its memory.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace penstock {

enum class Tier : uint8_t { device, host, nvme };
inline constexpr std::array kTiers{Tier::device, Tier::host, Tier::nvme};

constexpr const char* name_of(Tier tier) {
  switch (tier) {
    case Tier::device:
      return "device";
    case Tier::host:
      return "host";
    case Tier::nvme:
      return "nvme";
  }
  return "?";
}

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kGiB = 1024 * kMiB;

// What direct I/O, huge pages and copy engines all accept: offsets, lengths and addresses of tiles, windows and units
// are multiples of it.
constexpr uint64_t kAlignmentBytes = 4096;

// Checksums and norms are taken over blocks of this many elements, on every tier.
constexpr uint64_t kBlockElements = 64 * 1024;

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr uint64_t round_down(uint64_t value, uint64_t multiple) { return value / multiple * multiple; }
constexpr uint64_t ceil_div(uint64_t value, uint64_t divisor) { return (value + divisor - 1) / divisor; }

// "1.50 GiB", "4.00 KiB", "17 B": for messages and tables.
std::string bytes_text(uint64_t bytes);

// `value` with `digits` places after the point.
std::string fixed(double value, int digits);

}  // namespace penstock
