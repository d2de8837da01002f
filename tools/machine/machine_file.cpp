#include "tools/machine/machine_file.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace penstock {
namespace {

// Keys are looked up, so not in the order of the file: that would take time by the square of their number.
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kRemedy = "run `penstock nvme probe` again";
constexpr size_t kDrivesMost = 1024, kPointsMost = 256;
// Slower, smaller or larger than anything that is measured, and still far from where doubles end.
constexpr double kGbpsLeast = 1e-6, kGbpsMost = 1e6;
constexpr double kFlopsLeast = 1e-6, kFlopsMost = 1e24;
constexpr double kSecondsMost = 1e6;
constexpr double kEnduranceMost = 1e24;
constexpr double kShareLeast = 1e-6;
constexpr double kBytesMost = 0x1p53;  // that a double counts one by one

Result<MixCurve> parse_curve(const json& curve, const std::string& where) {
  std::vector<std::pair<double, double>> points;
  if (curve.is_array() && curve.size() <= kPointsMost) {
    for (const json& point : curve) {
      if (!point.is_array() || point.size() != 2 || !point[0].is_number() || !point[1].is_number()) break;
      double share = point[0].get<double>(), rate = point[1].get<double>();
      if (!(share >= 0 && share <= 1 && rate >= kGbpsLeast && rate < kGbpsMost)) break;
      points.push_back({share, rate});
    }
  }
  if (points.empty() || points.size() != curve.size()) {
    return Status(Code::kUsage, text("machine profile: ", where, ": [[read_share, gbps], ...] expected"), kRemedy);
  }
  return MixCurve(std::move(points));
}

// Absent where it was not measured.
Result<MemoryCurve> parse_memory_curve(const json& curve) {
  std::vector<std::pair<uint64_t, double>> points;
  for (const json& point : curve) {
    if (!point.is_array() || point.size() != 2 || !point[0].is_number_unsigned() || !point[1].is_number()) break;
    double share = point[1].get<double>();
    if (point[0].get<uint64_t>() == 0 || !(share >= kShareLeast && share <= 1)) break;
    points.push_back({point[0].get<uint64_t>(), share});
  }
  if (points.size() != curve.size() || curve.is_object() || curve.size() > kPointsMost) {
    return Status(Code::kUsage, "machine profile: drives[].rate_by_memory: [[bytes, share], ...] expected", kRemedy);
  }
  return MemoryCurve(std::move(points));
}

// Reads fields by key; the first that makes no sense is remembered. One that is absent, or of another type, is unknown.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  std::string text_or(const char* key, const std::string& otherwise) const {
    auto found = object_.find(key);
    return found != object_.end() && found->is_string() ? found->get<std::string>() : otherwise;
  }
  // 0, or from `least` to `most`.
  double number_or(const char* key, double otherwise, double least, double most) {
    auto found = object_.find(key);
    if (found == object_.end() || !found->is_number()) return otherwise;
    const double number = found->get<double>();
    if (number == 0 || (number >= least && number <= most)) return number;
    if (status_.ok()) {
      status_ =
          Status(Code::kUsage,
                 text("machine profile: ", where_, key, ": ", number, ": ", least, " to ", most, " expected"), kRemedy);
    }
    return otherwise;
  }
  double gbps(const char* key) { return number_or(key, 0, kGbpsLeast, kGbpsMost); }
  uint32_t count(const char* key, double most) { return static_cast<uint32_t>(number_or(key, 0, 1, most)); }
  // Some file systems say that they have more free than there is anywhere.
  uint64_t bytes(const char* key) { return static_cast<uint64_t>(std::min(kBytesMost, number_or(key, 0, 1, 1e30))); }
  const Status& status() const { return status_; }

 private:
  const json& object_;
  const std::string where_;
  Status status_;
};

// Null where there is none.
const json& member(const json& object, const char* key) {
  static const json kNone;
  auto found = object.find(key);
  return found != object.end() ? *found : kNone;
}

Result<DriveRates> parse_drive(const json& entry) {
  Fields fields(entry, "drives[].");
  DriveRates drive;
  drive.path = fields.text_or("path", "");
  drive.device = fields.text_or("device", "");
  PENSTOCK_TRY_ASSIGN(burst, parse_curve(member(entry, "mix_curve"), "drives[].mix_curve"));
  drive.burst = burst;
  if (const json& sustained = member(entry, "sustained_mix_curve"); sustained.is_array()) {
    PENSTOCK_TRY_ASSIGN(curve, parse_curve(sustained, "drives[].sustained_mix_curve"));
    drive.sustained = curve;
  }
  PENSTOCK_TRY_ASSIGN(by_memory, parse_memory_curve(member(entry, "rate_by_memory")));
  drive.by_memory = by_memory;
  Fields latency(member(entry, "latency_us"), "drives[].latency_us.");
  drive.latency_s = latency.number_or("p50", 100, 0, kSecondsMost * 1e6) / 1e6;
  drive.flush_s = fields.number_or("flush_s", 1e-3, 0, kSecondsMost);
  drive.capacity_bytes = fields.bytes("free_bytes");
  drive.endurance_bytes = fields.number_or("endurance_bytes", 0, 1, kEnduranceMost);
  PENSTOCK_TRY(latency.status());
  PENSTOCK_TRY(fields.status());
  return drive;
}

}  // namespace

Result<MachineProfile> parse_machine_profile(const std::string& json_text) {
  const json parsed = json::parse(json_text, nullptr, false);
  if (!parsed.is_object()) return Status(Code::kUsage, "machine profile: not a JSON object", kRemedy);
  Fields fields(parsed, "");
  MachineProfile profile;
  profile.name = fields.text_or("name", "unnamed");
  profile.devices = fields.count("devices", 1024);
  profile.device_flops = fields.number_or("device_flops", 0, kFlopsLeast, kFlopsMost);
  profile.device_bytes = fields.bytes("device_bytes");
  profile.device_gbps = fields.gbps("device_gbps");
  profile.host_to_device_gbps = fields.gbps("host_to_device_gbps");
  profile.device_to_host_gbps = fields.gbps("device_to_host_gbps");
  profile.collective_gbps = fields.gbps("collective_gbps");
  profile.network_gbps = fields.gbps("network_gbps");
  profile.host_gbps = fields.gbps("host_gbps");
  profile.host_bytes = fields.bytes("host_bytes");
  profile.threads = fields.count("threads", 65536);
  PENSTOCK_TRY(fields.status());
  const json& drives = member(parsed, "drives");
  if (!drives.is_array()) return profile;
  if (drives.size() > kDrivesMost) {
    return Status(Code::kUsage, text("machine profile: ", drives.size(), " drives: at most ", kDrivesMost, " expected"),
                  kRemedy);
  }
  for (const json& entry : drives) {
    PENSTOCK_TRY_ASSIGN(drive, parse_drive(entry));
    profile.drives.push_back(std::move(drive));
  }
  return profile;
}

std::string to_json(const MachineProfile& profile) {
  ordered_json out;
  out["schema"] = "penstock.machine/1";
  out["name"] = profile.name;
  out["devices"] = profile.devices;
  out["device_flops"] = profile.device_flops;
  out["device_bytes"] = profile.device_bytes;
  if (profile.device_gbps > 0) out["device_gbps"] = profile.device_gbps;
  out["host_to_device_gbps"] = profile.host_to_device_gbps;
  out["device_to_host_gbps"] = profile.device_to_host_gbps;
  out["collective_gbps"] = profile.collective_gbps;
  if (profile.network_gbps > 0) out["network_gbps"] = profile.network_gbps;
  out["host_gbps"] = profile.host_gbps;
  out["host_bytes"] = profile.host_bytes;
  out["threads"] = profile.threads;
  out["drives"] = ordered_json::array();
  for (const DriveRates& drive : profile.drives) {
    ordered_json entry;
    entry["path"] = drive.path;
    entry["device"] = drive.device;
    entry["mix_curve"] = drive.burst.points();
    if (drive.sustained) entry["sustained_mix_curve"] = drive.sustained->points();
    if (!drive.by_memory.points().empty()) entry["rate_by_memory"] = drive.by_memory.points();
    entry["latency_us"] = {{"p50", std::round(drive.latency_s * 1e9) / 1e3}};
    entry["flush_s"] = drive.flush_s;
    entry["free_bytes"] = drive.capacity_bytes;
    entry["endurance_bytes"] = drive.endurance_bytes;
    out["drives"].push_back(std::move(entry));
  }
  // A folder's name may be of any bytes.
  return out.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace penstock
