#include "tiering/plan/memory_layout.h"

#include <algorithm>

namespace penstock {

const char* name_of(Area area) {
  static constexpr const char* kNames[kAreas] = {"host_units",           "device_units", "device_gradients",
                                                 "downloaded_gradients", "activations",  "offloaded_activations",
                                                 "spilled_activations",  "none"};
  return kNames[static_cast<size_t>(area)];
}

void lay_out(std::vector<BudgetLine>& lines) {
  uint64_t end = 0, device_end = 0, padding = 0;
  Region before = Region::none;
  for (BudgetLine& line : lines) {
    if (line.region == Region::none) continue;
    if (line.tier == Tier::device) {
      line.offset_bytes = device_end;
      device_end += line.bytes;
      continue;
    }
    if (line.region != before) {
      uint64_t region_bytes = 0;
      for (const BudgetLine& other : lines) region_bytes += other.region == line.region ? other.bytes : 0;
      const uint64_t start = round_up(end, region_bytes >= kHugePageBytes ? kHugePageBytes : kAlignmentBytes);
      padding += start - end;
      end = start;
      before = line.region;
    }
    line.offset_bytes = end;
    end += line.bytes;
  }
  const uint64_t whole = round_up(std::max<uint64_t>(end, 1), kHugePageBytes);
  padding += whole - end;
  if (padding > 0) lines.push_back({Tier::host, "rounding to 2 MiB pages", padding});
}

MemoryRun run_of(const std::vector<BudgetLine>& lines, Region region) {
  MemoryRun run;
  for (const BudgetLine& line : lines) {
    if (line.region != region) continue;
    if (run.bytes == 0) run.offset_bytes = line.offset_bytes;
    run.bytes += line.bytes;
  }
  return run;
}

uint64_t arena_bytes(const std::vector<BudgetLine>& lines, Tier tier) {
  uint64_t end = tier == Tier::host ? 1 : 0;
  for (const BudgetLine& line : lines) {
    if (line.region != Region::none && line.tier == tier) end = std::max(end, line.offset_bytes + line.bytes);
  }
  return tier == Tier::host ? round_up(end, kHugePageBytes) : end;
}

uint64_t needed_bytes(const std::vector<BudgetLine>& lines, Tier tier) {
  uint64_t sum = 0;
  for (const BudgetLine& line : lines) sum += line.tier == tier ? line.bytes : 0;
  return sum;
}

}  // namespace penstock
