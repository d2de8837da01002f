// A forecast as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/plan/forecast.h"

namespace penstock::tools {

// As --activations names it.
const char* name_of(ActivationChoice choice);

// "1.2 s, bound by drives", or what can be said without some rates: "at least 1.2 s, without updates and compute".
std::string step_text(const Forecast& forecast);

std::string forecast_text(const Forecast& forecast);
nlohmann::ordered_json forecast_json(const Forecast& forecast);

// Why it does not fit, as a refusal; ok where it does.
Status forecast_verdict(const Forecast& forecast);

}  // namespace penstock::tools
