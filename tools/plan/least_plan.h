// What the smallest plan of a rank's request needs, to be shown beside the budgets it does not fit.
#pragma once

#include "tiering/plan/planner.h"

namespace penstock::tools {

uint64_t budget_of(const Budgets& budgets, Tier tier);

// Of all plans, the one that is short of the fewest bytes: of device memory first, which no budget adds to, then of
// host memory, then of drives.
Result<std::vector<BudgetLine>> least_plan(const PlanRequest& request);

}  // namespace penstock::tools
