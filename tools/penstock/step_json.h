// What verbs that run steps say of each in JSON, alike.
#pragma once

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

}  // namespace penstock::tools
