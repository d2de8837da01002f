// A forecast as text, and the words for parts of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/plan/forecast.h"

namespace penstock::tools {

// What a forecast tells of the lanes, in this order.
inline constexpr Lane kLanesShown[] = {Lane::nvme_read, Lane::nvme_write, Lane::host_to_device, Lane::device_to_host,
                                       Lane::update,    Lane::collective, Lane::compute};

// As --activations names it.
const char* name_of(ActivationChoice choice);
// "recompute", or "keep 5 of 14, recompute the others".
std::string activations_text(const std::vector<ActivationChoice>& by_use);

// "1.2 s, bound by drives", or what can be said without some rates: "at least 1.2 s, without updates and compute".
std::string step_text(const Forecast& forecast);

std::string forecast_text(const Forecast& forecast);

// Why it does not fit, as a refusal; ok where it does.
Status forecast_verdict(const Forecast& forecast);

bool is_unbounded(uint64_t budget_bytes);
// With adapters, theirs alone.
uint64_t trained_parameters(const ForecastRequest& request);

}  // namespace penstock::tools
