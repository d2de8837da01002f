#include "tiering/plan/machine_profile.h"

#include <algorithm>
#include <cmath>

#include "tiering/tier.h"

namespace penstock {

MixCurve::MixCurve(std::vector<std::pair<double, double>> share_and_gbps) : points_(std::move(share_and_gbps)) {
  CHECK(!points_.empty(), "a mix curve needs a point");
  std::sort(points_.begin(), points_.end());
  for (const auto& [share, rate] : points_) CHECK(rate > 0, "a rate of ", rate, " GB/s at a read share of ", share);
}

double MixCurve::gbps(double read_share) const {
  CHECK(!points_.empty());
  if (read_share <= points_.front().first) return points_.front().second;
  for (size_t i = 1; i < points_.size(); ++i) {
    const auto& [share, rate] = points_[i];
    if (read_share > share) continue;
    const auto& [share_before, rate_before] = points_[i - 1];
    double part = (read_share - share_before) / (share - share_before);
    return rate_before + part * (rate - rate_before);
  }
  return points_.back().second;
}

MixCurve MixCurve::scaled(double factor) const {
  std::vector<std::pair<double, double>> points = points_;
  for (auto& point : points) point.second *= factor;
  return MixCurve(std::move(points));
}

MemoryCurve::MemoryCurve(std::vector<std::pair<uint64_t, double>> bytes_and_share)
    : points_(std::move(bytes_and_share)) {
  std::sort(points_.begin(), points_.end());
  for (const auto& [bytes, share] : points_) CHECK(share > 0 && share <= 1, "a share of ", share, " for ", bytes, " B");
}

double MemoryCurve::share(uint64_t bytes) const {
  if (points_.empty()) return 1;
  if (bytes <= points_.front().first) return points_.front().second;
  for (size_t i = 1; i < points_.size(); ++i) {
    const auto& [at, share] = points_[i];
    if (bytes > at) continue;
    const auto& [before, share_before] = points_[i - 1];
    // Caches are measured in powers of two.
    auto log = [](uint64_t value) { return std::log2(static_cast<double>(value)); };
    return share_before + (share - share_before) * (log(bytes) - log(before)) / (log(at) - log(before));
  }
  return points_.back().second;
}

bool MachineProfile::uses_burst_rates() const {
  return std::any_of(drives.begin(), drives.end(), [](const DriveRates& drive) { return !drive.sustained; });
}

MixCurve MachineProfile::striped() const {
  std::vector<std::pair<double, double>> sum;
  for (const DriveRates& drive : drives) {
    for (const auto& point : drive.rates().points()) sum.push_back({point.first, 0});
  }
  if (sum.empty()) return MixCurve();
  std::sort(sum.begin(), sum.end());
  sum.erase(std::unique(sum.begin(), sum.end()), sum.end());
  for (auto& point : sum) {
    for (const DriveRates& drive : drives) point.second += drive.rates().gbps(point.first);
  }
  return MixCurve(std::move(sum));
}

std::vector<double> MachineProfile::step_rates(size_t count) const {
  if (drives.size() != count) return {};
  std::vector<double> rates;
  for (const DriveRates& drive : drives) rates.push_back(drive.gbps_for(10, 12));  // bytes a parameter
  return rates;
}

double MachineProfile::share_by_memory(uint64_t bytes) const {
  double all = 0, kept = 0;
  for (const DriveRates& drive : drives) {
    const double rate = drive.gbps_for(1, 1);
    all += rate;
    kept += rate * drive.by_memory.share(bytes);
  }
  return all > 0 ? kept / all : 1;
}

double MachineProfile::flush_s() const {
  double slowest = 0;
  for (const DriveRates& drive : drives) slowest = std::max(slowest, drive.flush_s);
  return slowest;
}

}  // namespace penstock
