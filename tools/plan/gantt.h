// The lanes of a simulated step over time, as an SVG that any browser shows.
#pragma once

#include <string>

#include "tiering/plan/plan.h"
#include "tiering/plan/simulator.h"

namespace penstock::tools {

// One steady step and half a step on either side. REQUIRES: the simulation recorded its spans.
std::string gantt_svg(const Plan& plan, const Simulation& simulation, const std::string& title);

}  // namespace penstock::tools
