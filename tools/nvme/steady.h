// Steady measures a drive's sustained rates: it writes until the drive's fast cache is full and the rate no longer
// falls, then measures mixtures of reads and writes.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "tools/nvme/rig.h"

namespace penstock::tools {

struct SteadyOptions {
  uint64_t write_budget_bytes = 0;
  uint64_t block_bytes = kMiB;
  uint32_t depth = 8;
};

struct Steady {
  uint64_t written_bytes = 0;
  double burst_gbps = 0;                     // at the beginning
  double sustained_gbps = 0;                 // at the end
  std::optional<uint64_t> fell_after_bytes;  // nothing: it never fell, as far as the budget went
  std::vector<std::pair<double, double>> mix_curve;
  std::vector<RatePoint> rate;  // of the writes
};

// REQUIRES: the rig's memory holds the blocks under way.
Result<Steady> measure_steady(Rig& rig, size_t folder, const SteadyOptions& options, const Tick& tick);

// Looks for the plateau in the rates of equal shares of bytes, in order.
class PlateauFinder {
 public:
  // True once the rate has fallen and stays.
  bool add(double gbps);

  double burst_gbps() const { return burst_gbps_; }
  // The median of the last few.
  double recent_gbps() const;
  // After how many shares it fell; nothing if it has not.
  std::optional<size_t> fell_after() const { return fell_after_; }

 private:
  std::vector<double> rates_;
  double burst_gbps_ = 0;
  std::optional<size_t> fell_after_;
};

}  // namespace penstock::tools
