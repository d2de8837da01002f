#include "tiering/budget.h"

#include <algorithm>
#include <cstdio>

namespace penstock {
namespace {

// Never less than is missing, once it is written out with two digits. What is asked for may have been measured, and be
// a little more the next time: by 1.8 MiB of 180 where a process takes them.
uint64_t advised_bytes(uint64_t missing) {
  if (missing < kMiB) return round_up(missing, kKiB);
  if (missing < 16 * kMiB) return round_up(missing, kMiB / 4);
  return round_up(missing + std::clamp(missing / 32, kMiB, 16 * kMiB), kMiB);
}

}  // namespace

Status Budget::take(const std::string& name, uint64_t bytes, uint64_t later_bytes) {
  if (bytes > free_bytes()) {
    return Status(Code::kDoesNotFit,
                  text(name_of(tier_), " budget: ", name, " needs ", bytes, " B (", bytes_text(bytes), "), ",
                       free_bytes(), " B of ", capacity_bytes_, " B are free"),
                  text("raise --budget ", name_of(tier_), "= by at least ",
                       bytes_text(advised_bytes(bytes - free_bytes() + later_bytes))));
  }
  taken_bytes_ += bytes;
  auto line = std::find_if(lines_.begin(), lines_.end(), [&](const Line& l) { return l.name == name; });
  if (line == lines_.end()) {
    lines_.push_back({name, bytes});
  } else {
    line->bytes += bytes;
  }
  return Status();
}

std::string Budget::table() const {
  std::string out;
  char row[160];
  auto add = [&](const std::string& name, uint64_t bytes) {
    std::snprintf(row, sizeof row, "  %-6s  %-28s %14s\n", name_of(tier_), name.c_str(), bytes_text(bytes).c_str());
    out += row;
  };
  for (const Line& line : lines_) add(line.name, line.bytes);
  add("total", taken_bytes_);
  add("budget", capacity_bytes_);
  return out;
}

}  // namespace penstock
