// What the planner makes of accepted profiles, models and flags: used by several targets.
#pragma once

#include <cmath>

#include "tools/plan/forecast.h"
#include "tools/plan/forecast_json.h"
#include "tools/plan/forecast_text.h"

namespace penstock::fuzz {

// A model of few tiles, so that a plan of it takes a millisecond.
inline tools::ModelShape tiny_model() {
  return {
      .name = "tiny", .layers = 2, .hidden = 64, .heads = 4, .kv_heads = 4, .head_size = 16, .ffn = 256, .vocab = 512};
}

inline std::string count_on(const tools::Forecast& forecast) {
  if (!forecast.fits) return forecast.needed.empty() || forecast.remedy.empty() ? "does not fit, without a reason" : "";
  const double times[] = {forecast.times.step_s, forecast.times.drives_busy_s, forecast.read_bytes_per_step,
                          forecast.written_bytes_per_step, forecast.compute_bound_tokens};
  for (const double each : times) {
    if (!std::isfinite(each) || each < 0) return text("predicts ", each);
  }
  if (forecast.times.step_s <= 0) return "a step of no time";
  for (const double busy_s : forecast.times.busy_s) {
    if (!std::isfinite(busy_s) || busy_s < 0) return text("a lane that is busy for ", busy_s, " s");
  }
  return "";
}

inline tools::ForecastRequest request_of(tools::ModelShape shape, MachineProfile machine) {
  tools::ForecastRequest request;
  request.shape = std::move(shape);
  request.machine = std::move(machine);
  return request;
}

// Plans, simulates and reports. What is wrong with what is predicted; a refusal is not.
inline std::string predict(tools::ForecastRequest request) {
  const Result<tools::Forecast> forecast = tools::forecast(std::move(request));
  if (!forecast.ok()) return forecast.status().remedy().empty() ? "refused without a way out" : "";
  if (tools::forecast_text(*forecast).empty() || tools::forecast_json(*forecast).empty()) return "no report";
  return count_on(*forecast);
}

}  // namespace penstock::fuzz
