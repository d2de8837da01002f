// What a step waits for: each resource made a tenth faster in turn, the same plan run again in virtual time. A lane may
// be busy for most of a step and yet delay nothing; one that is idle half of the time may be what all else waits for.
#pragma once

#include <string>
#include <vector>

#include "tiering/plan/simulator.h"

namespace penstock::tools {

constexpr double kReliefFaster = 1.1;

struct Relief {
  std::string resource;  // "drives", or a lane's name
  double saved_s = 0;    // of a step, on average over durable ones and others
};

// The largest first, without lanes that carry nothing. A saving may be slightly below 0: faster moves come in another
// order.
std::vector<Relief> find_reliefs(const Plan& plan, const MachineProfile& machine, const SimulationOptions& options);

// The resource whose relief shortens a step of `step_s` the most; "order" where none shortens it: parts of the step
// wait for one another's ends. "unknown" without reliefs.
std::string bottleneck_of(const std::vector<Relief>& reliefs, double step_s);

}  // namespace penstock::tools
