// A forecast as JSON, for programs that read along.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/plan/forecast.h"

namespace penstock::tools {

nlohmann::ordered_json forecast_json(const Forecast& forecast);

}  // namespace penstock::tools
