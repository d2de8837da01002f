// What a forecast is asked for, checked and filled in, as a request for one rank's plan; and what to ask for instead
// where no plan fits.
#pragma once

#include <string>

#include "tools/plan/forecast.h"

namespace penstock::tools {

Status check_request(const ForecastRequest& request);
// Of a request that was filled in.
Status check_passes(const ForecastRequest& request);
// Refuses what training refuses of several ranks. Of a request that was filled in, too.
Status check_form_of_ranks(const ForecastRequest& request);

// What a node takes from others where nobody knows: 100 Gbit/s.
constexpr double kNetworkAssumedGbps = 12.5;
bool assumes_network(const ForecastRequest& request);
// Ranks, the rate between nodes, budgets and micro-batches that were not given: what is usual.
void fill_in(ForecastRequest& request);
// REQUIRES: the request is filled in.
PlanRequest request_of_rank(const ForecastRequest& request, Stage stage);

// Every way out that suffices by itself. `asked`: before it was filled in.
std::string remedy_for(const ForecastRequest& asked, const Forecast& forecast);

}  // namespace penstock::tools
