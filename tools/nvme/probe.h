// Probe measures a drive within a time budget: latency, the best block size and depth, bandwidth by share of reads, the
// cost of a flush.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tiering/plan/machine_profile.h"
#include "tools/nvme/rig.h"

namespace penstock::tools {

struct GridPoint {
  uint64_t block_bytes = 0;
  uint32_t depth = 0;
  double read_gbps = 0;
  double write_gbps = 0;
};

struct DriveProbe {
  std::string path;
  aio::DriveInfo drive;
  uint64_t alignment_bytes = 0;
  std::vector<GridPoint> grid;
  GridPoint best;
  std::vector<std::pair<double, double>> mix_curve;  // {read share, GB/s}
  MemoryCurve by_memory;
  double latency_p50_us = 0, latency_p99_us = 0;  // of a 4 KiB read, alone
  double flush_s = 0;
  std::string engine;

  // By the curve.
  double gbps(double read_share) const { return MixCurve(mix_curve).gbps(read_share); }
  DriveRates rates() const;
};

// Probes each folder of the rig in turn, `seconds` in all. The rig's memory holds kProbeMemoryBytes for each folder.
constexpr uint64_t kProbeMemoryBytes = Rig::kMostMemoryBytes;
Result<std::vector<DriveProbe>> probe_drives(Rig& rig, double seconds, const Tick& tick);

}  // namespace penstock::tools
