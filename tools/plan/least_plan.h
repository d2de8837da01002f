// What the smallest plan takes, for a rank's request that does not fit: shown beside what there is.
#pragma once

#include "tiering/plan/planner.h"

namespace penstock::tools {

struct LeastPlan {
  std::vector<BudgetLine> lines;
  std::string remedy;  // in budgets of the whole node
};

// Of all plans, the one that is short of the fewest bytes: of device memory first, which no budget adds to, then of
// host memory, then of drives.
Result<LeastPlan> least_plan(const PlanRequest& request);

}  // namespace penstock::tools
