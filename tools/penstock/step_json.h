// What verbs that run steps say of each in JSON, alike.
#pragma once

#include <optional>

#include "runtime/engine/engine.h"
#include "tools/penstock/verb.h"

namespace penstock::tools {

// Null for the engine's 0: it had no rates.
inline Json predicted_json(double seconds) { return seconds > 0 ? Json(seconds) : Json(); }

// Seconds by the lane that was waited for; those that were not are left out.
inline Json stalls_json(const engine::StepReport& report) {
  Json stalls = Json::object();
  for (size_t lane = 0; lane < kLanes; ++lane) {
    if (report.stall_s[lane] > 0) stalls[name_of(static_cast<Lane>(lane))] = report.stall_s[lane];
  }
  return stalls;
}

// Seconds by lane with something under way; those without are left out.
inline Json busy_json(const engine::StepReport& report) {
  Json busy = Json::object();
  for (size_t lane = 0; lane < static_cast<size_t>(Lane::none); ++lane) {
    if (report.busy_s[lane] > 0) busy[name_of(static_cast<Lane>(lane))] = report.busy_s[lane];
  }
  return busy;
}

// Seconds a step that the drives alone would need for what `steps` steps moved; none where their rates are not known,
// or nothing was moved.
inline std::optional<double> drive_floor_s(const MachineProfile& machine, const engine::DriveBytes& moved,
                                           double steps) {
  const auto read = static_cast<double>(moved.read_bytes), written = static_cast<double>(moved.written_bytes);
  const MixCurve drives = machine.striped();
  if (drives.empty() || read + written == 0) return std::nullopt;
  return (read + written) / (drives.gbps(read / (read + written)) * 1e9) / steps;
}

inline Json json_or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

}  // namespace penstock::tools
