// MachineProfile: the measured rates that plans are made from.
//
// Rates are in 10^9 B/s. Where a sustained rate was measured the planner uses it; else it uses the burst rate and says
// so.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tiering/status.h"

namespace penstock {

// A drive's total rate by the share of bytes that are reads; between two points, linear.
class MixCurve {
 public:
  MixCurve() = default;
  // Points need not be sorted. REQUIRES: not empty, rates positive.
  explicit MixCurve(std::vector<std::pair<double, double>> share_and_gbps);
  static MixCurve flat(double gbps) { return MixCurve({{0.0, gbps}, {1.0, gbps}}); }

  double gbps(double read_share) const;
  const std::vector<std::pair<double, double>>& points() const { return points_; }
  bool empty() const { return points_.empty(); }
  // Both at once: the rates add up. `weight` is this curve's share of the bytes where the two are striped.
  MixCurve scaled(double factor) const;

 private:
  std::vector<std::pair<double, double>> points_;  // sorted by share
};

// What part of its rate a drive keeps when its bytes lie in so much memory in turn. A drive whose bytes pass through
// the CPU slows down where that is more than a cache holds; one that has memory to itself keeps 1.
class MemoryCurve {
 public:
  MemoryCurve() = default;
  // Points need not be sorted. REQUIRES: shares in (0, 1].
  explicit MemoryCurve(std::vector<std::pair<uint64_t, double>> bytes_and_share);

  double share(uint64_t bytes) const;
  const std::vector<std::pair<uint64_t, double>>& points() const { return points_; }

 private:
  std::vector<std::pair<uint64_t, double>> points_;  // sorted by bytes; empty: always 1
};

struct DriveRates {
  std::string path;
  std::string device;
  MixCurve burst;
  std::optional<MixCurve> sustained;
  MemoryCurve by_memory;
  double latency_s = 100e-6;  // measured and kept for who reads the profile; plans have enough under way to hide it
  double flush_s = 1e-3;
  uint64_t capacity_bytes = 0;
  double endurance_bytes = 0;  // rated total bytes written; 0: unknown

  const MixCurve& rates() const { return sustained ? *sustained : burst; }
  // Rate at which it moves `read` bytes read for every `written` bytes written.
  double gbps_for(double read, double written) const {
    return rates().gbps(read + written > 0 ? read / (read + written) : 1);
  }
};

struct MachineProfile {
  std::string name;
  std::vector<DriveRates> drives;
  uint32_t devices = 0;            // accelerators; 0: the CPU computes
  double device_flops = 0;         // achieved, of one device
  uint64_t device_bytes = 0;       // of one device
  double device_gbps = 0;          // memory traffic of an update on one device; 0: not measured
  double host_to_device_gbps = 0;  // of one device; 0: device memory is host memory
  double device_to_host_gbps = 0;
  double collective_gbps = 0;  // what a rank takes from others of its node
  double network_gbps = 0;     // what a node takes from others
  double host_gbps = 0;        // memory traffic of the CPU update, all threads
  uint64_t host_bytes = 0;
  uint32_t threads = 0;

  // What updates on a device are timed with: its memory's rate, or where nobody has measured that, its link's, which is
  // slower.
  double device_update_gbps() const { return device_gbps > 0 ? device_gbps : host_to_device_gbps; }
  // Whether what a device computes with is copied to it: one without a rate to it computes in host memory.
  bool copies_to_device() const { return devices > 0 && host_to_device_gbps > 0; }
  bool uses_burst_rates() const;
  // Several drives in a stripe whose shares follow their rates, as one.
  MixCurve striped() const;
  // Each drive's rate for what an optimizer step moves, where there are `count` drives; else empty: nobody knows.
  std::vector<double> step_rates(size_t count) const;
  double flush_s() const;
  // Of the drives together.
  double share_by_memory(uint64_t bytes) const;
};

}  // namespace penstock
