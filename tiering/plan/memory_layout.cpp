#include "tiering/plan/memory_layout.h"

#include <algorithm>
#include <array>

namespace penstock {

const char* name_of(Area area) {
  static constexpr const char* kNames[kAreas] = {"host_units",          "device_units", "device_gradients",
                                                 "lowered_gradients",   "activations",  "offloaded_activations",
                                                 "spilled_activations", "none"};
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

uint64_t activation_place_bytes(const Use& use, ActivationChoice choice) {
  return round_up(recomputes(choice) ? use.boundary_bytes : use.activation_bytes, kAlignmentBytes);
}

DeviceSumBytes device_sum_bytes(const Workload& workload, uint32_t unit, uint32_t group) {
  const uint64_t elements = workload.units[unit].elements * std::max(1u, workload.ranks);
  const uint64_t rounded = elements * bytes_of(workload.form.gradient);
  DeviceSumBytes bytes{.sum = round_up(elements * sizeof(float), kAlignmentBytes)};
  const bool completes = group >= workload.micro_batches && uses_of(workload, unit).size() == 1;
  if (completes && rounded < elements * sizeof(float)) bytes.rounded = round_up(rounded, kAlignmentBytes);
  return bytes;
}

SumLayout lay_out_sums(const Workload& workload, uint32_t group) {
  SumLayout layout;
  layout.offset_bytes.resize(workload.units.size());
  // Where all micro-batches pass through a unit before the next, the sum of a unit with one use ends before that of the
  // next but one begins: every second shares a place.
  const bool vertical = group >= workload.micro_batches;
  std::array<uint64_t, 2> shared_bytes{};
  std::vector<uint32_t> sharing;
  for (uint32_t unit = 0; unit < workload.units.size(); ++unit) {
    const Unit& shape = workload.units[unit];
    const size_t uses = uses_of(workload, unit).size();
    const bool comes_at_once = workload.pass == Pass::update_only && workload.micro_batches * uses <= 1;
    if (!shape.trainable || (comes_at_once && !shape.gradient_in_parts)) continue;
    const uint64_t bytes = round_up(shape.elements * sizeof(float), kAlignmentBytes);
    if (vertical && uses == 1 && !shape.gradient_in_parts) {
      uint64_t& most = shared_bytes[sharing.size() % 2];
      most = std::max(most, bytes);
      sharing.push_back(unit);
      continue;
    }
    for (size_t use = 0; use < uses; ++use) {
      layout.offset_bytes[unit].push_back(layout.bytes);
      layout.bytes += bytes;
    }
  }
  for (size_t i = 0; i < sharing.size(); ++i) {
    layout.offset_bytes[sharing[i]] = {layout.bytes + (i % 2) * shared_bytes[0]};
  }
  layout.bytes += shared_bytes[0] + shared_bytes[1];
  return layout;
}

}  // namespace penstock
