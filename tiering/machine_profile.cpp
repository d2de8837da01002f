#include "tiering/machine_profile.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

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

namespace {

using nlohmann::ordered_json;

Result<MixCurve> parse_curve(const ordered_json& json, const std::string& where) {
  std::vector<std::pair<double, double>> points;
  if (json.is_array()) {
    for (const ordered_json& point : json) {
      if (!point.is_array() || point.size() != 2 || !point[0].is_number() || !point[1].is_number()) break;
      double share = point[0].get<double>(), rate = point[1].get<double>();
      if (!(share >= 0 && share <= 1 && rate > 0 && rate < 1e6)) break;
      points.push_back({share, rate});
    }
  }
  if (points.empty() || points.size() != json.size()) {
    return Status(Code::kUsage, text("machine profile: ", where, ": expected [[read_share, gbps], ...]"),
                  "run `penstock nvme probe` again");
  }
  return MixCurve(std::move(points));
}

// Absent where it was not measured.
Result<MemoryCurve> parse_memory_curve(const ordered_json& json) {
  std::vector<std::pair<uint64_t, double>> points;
  for (const ordered_json& point : json) {
    if (!point.is_array() || point.size() != 2 || !point[0].is_number_unsigned() || !point[1].is_number()) break;
    double share = point[1].get<double>();
    if (point[0].get<uint64_t>() == 0 || !(share > 0 && share <= 1)) break;
    points.push_back({point[0].get<uint64_t>(), share});
  }
  if (points.size() != json.size()) {
    return Status(Code::kUsage, "machine profile: drives[].rate_by_memory: expected [[bytes, share], ...]",
                  "run `penstock nvme probe` again");
  }
  return MemoryCurve(std::move(points));
}

double number_or(const ordered_json& json, const char* key, double otherwise) {
  auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : otherwise;
}

std::string text_or(const ordered_json& json, const char* key, const std::string& otherwise) {
  auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

}  // namespace

Result<MachineProfile> parse_machine_profile(const std::string& json_text) {
  ordered_json json = ordered_json::parse(json_text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) {
    return Status(Code::kUsage, "machine profile: not a JSON object", "run `penstock nvme probe` again");
  }
  MachineProfile profile;
  profile.name = text_or(json, "name", "unnamed");
  profile.devices = static_cast<uint32_t>(std::clamp(number_or(json, "devices", 0), 0.0, 1024.0));
  profile.device_flops = number_or(json, "device_flops", 0);
  profile.device_bytes = static_cast<uint64_t>(std::max(0.0, number_or(json, "device_bytes", 0)));
  profile.host_to_device_gbps = number_or(json, "host_to_device_gbps", 0);
  profile.device_to_host_gbps = number_or(json, "device_to_host_gbps", 0);
  profile.collective_gbps = number_or(json, "collective_gbps", 0);
  profile.host_gbps = number_or(json, "host_gbps", 0);
  profile.host_bytes = static_cast<uint64_t>(std::max(0.0, number_or(json, "host_bytes", 0)));
  profile.threads = static_cast<uint32_t>(std::clamp(number_or(json, "threads", 0), 0.0, 65536.0));
  if (auto drives = json.find("drives"); drives != json.end() && drives->is_array()) {
    for (const ordered_json& entry : *drives) {
      DriveRates drive;
      drive.path = text_or(entry, "path", "");
      drive.device = text_or(entry, "device", "");
      PENSTOCK_TRY_ASSIGN(burst, parse_curve(entry.value("mix_curve", ordered_json()), "drives[].mix_curve"));
      drive.burst = burst;
      if (auto sustained = entry.find("sustained_mix_curve"); sustained != entry.end() && sustained->is_array()) {
        PENSTOCK_TRY_ASSIGN(curve, parse_curve(*sustained, "drives[].sustained_mix_curve"));
        drive.sustained = curve;
      }
      PENSTOCK_TRY_ASSIGN(by_memory, parse_memory_curve(entry.value("rate_by_memory", ordered_json::array())));
      drive.by_memory = by_memory;
      drive.latency_s = number_or(entry.value("latency_us", ordered_json::object()), "p50", 100) * 1e-6;
      drive.flush_s = number_or(entry, "flush_s", 1e-3);
      drive.capacity_bytes = static_cast<uint64_t>(std::max(0.0, number_or(entry, "free_bytes", 0)));
      drive.endurance_bytes = number_or(entry, "endurance_bytes", 0);
      profile.drives.push_back(std::move(drive));
    }
  }
  return profile;
}

std::string to_json(const MachineProfile& profile) {
  ordered_json json;
  json["schema"] = "penstock.machine/1";
  json["name"] = profile.name;
  json["devices"] = profile.devices;
  json["device_flops"] = profile.device_flops;
  json["device_bytes"] = profile.device_bytes;
  json["host_to_device_gbps"] = profile.host_to_device_gbps;
  json["device_to_host_gbps"] = profile.device_to_host_gbps;
  json["collective_gbps"] = profile.collective_gbps;
  json["host_gbps"] = profile.host_gbps;
  json["host_bytes"] = profile.host_bytes;
  json["threads"] = profile.threads;
  json["drives"] = ordered_json::array();
  for (const DriveRates& drive : profile.drives) {
    ordered_json entry;
    entry["path"] = drive.path;
    entry["device"] = drive.device;
    entry["mix_curve"] = drive.burst.points();
    if (drive.sustained) entry["sustained_mix_curve"] = drive.sustained->points();
    if (!drive.by_memory.points().empty()) entry["rate_by_memory"] = drive.by_memory.points();
    entry["latency_us"] = {{"p50", drive.latency_s * 1e6}};
    entry["flush_s"] = drive.flush_s;
    entry["free_bytes"] = drive.capacity_bytes;
    entry["endurance_bytes"] = drive.endurance_bytes;
    json["drives"].push_back(std::move(entry));
  }
  return json.dump(2);
}

std::vector<MachineProfile> shipped_profiles() {
  auto drives = [](int count, double read, double write, double endurance_tb) {
    DriveRates drive;
    drive.sustained = MixCurve({{0.0, write}, {0.5, 2 / (1 / read + 1 / write)}, {1.0, read}});
    drive.burst = *drive.sustained;
    drive.capacity_bytes = uint64_t{4'000'000'000'000};
    drive.endurance_bytes = endurance_tb * 1e12;
    std::vector<DriveRates> all(count, drive);
    for (int i = 0; i < count; ++i) all[i].path = text("/mnt/nvme", i);
    return all;
  };
  MachineProfile desktop{.name = "rtx4090-2gen4",
                         .drives = drives(2, 7, 5, 2400),
                         .devices = 1,
                         .device_flops = 150e12,
                         .device_bytes = 24 * kGiB,
                         .host_to_device_gbps = 25,
                         .device_to_host_gbps = 25,
                         .collective_gbps = 0,
                         .host_gbps = 60,
                         .host_bytes = 128 * kGiB,
                         .threads = 16};
  MachineProfile h100{.name = "h100-4gen4",
                      .drives = drives(4, 6.5, 4.5, 7000),
                      .devices = 1,
                      .device_flops = 450e12,
                      .device_bytes = 80 * kGiB,
                      .host_to_device_gbps = 50,
                      .device_to_host_gbps = 50,
                      .collective_gbps = 0,
                      .host_gbps = 300,
                      .host_bytes = 512 * kGiB,
                      .threads = 48};
  MachineProfile h200{.name = "8h200-8gen5",
                      .drives = drives(8, 11.25, 7, 14000),
                      .devices = 8,
                      .device_flops = 550e12,
                      .device_bytes = 141 * kGiB,
                      .host_to_device_gbps = 50,
                      .device_to_host_gbps = 50,
                      .collective_gbps = 350,
                      .host_gbps = 450,
                      .host_bytes = 2048 * kGiB,
                      .threads = 192};
  MachineProfile cpu{.name = "cpu-2core",
                     .drives = drives(1, 3.6, 4.6, 0),
                     .devices = 0,
                     .device_flops = 0.25e12,
                     .device_bytes = 0,
                     .host_to_device_gbps = 0,
                     .device_to_host_gbps = 0,
                     .collective_gbps = 0,
                     .host_gbps = 60,
                     .host_bytes = 24 * kGiB,
                     .threads = 2};
  return {desktop, h100, h200, cpu};
}

}  // namespace penstock
