// One rank's share of a node: drives, memory, CPU and network divided evenly, and a device where there are any.
#pragma once

#include "tiering/plan/planner.h"

namespace penstock::tools {

// What one of several ranks of a host takes from the others where no device computes: they copy, of its part of the
// memory's traffic a byte read and a byte written.
double copied_gbps(const MachineProfile& of_rank);

MachineProfile share_of(MachineProfile node, uint32_t ranks);
Budgets share_of(Budgets node, uint32_t ranks);

// What a node has, less a tenth for all else that runs there. Drives of unknown size have no bound.
Budgets usual_budgets(const MachineProfile& node);

}  // namespace penstock::tools
