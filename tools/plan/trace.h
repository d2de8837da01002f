// Every move of the simulated steps as a Chrome trace, which ui.perfetto.dev and chrome://tracing show: a drawing for
// looking closer than an SVG allows.
#pragma once

#include <string>

#include "tiering/plan/plan.h"
#include "tiering/plan/simulator.h"

namespace penstock::tools {

// A row for the steps and one for each lane, or several where the lane carries several moves at once; `units` name what
// is moved. REQUIRES: the simulation recorded its spans.
std::string chrome_trace(const Plan& plan, const std::vector<Unit>& units, const Simulation& simulation,
                         const std::string& title);

}  // namespace penstock::tools
