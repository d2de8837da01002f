// ResourceChange: a machine with more of one resource, all else as it is: what advice plans for again.
#pragma once

#include <string>
#include <vector>

#include "tiering/plan/planner.h"

namespace penstock::tools {

struct ResourceChange {
  std::string what;  // "drives: one more like the last"
  MachineProfile machine;
  Budgets budgets;
  double compute_faster = 1;  // which machine.device_flops has already
};

// What is there now.
struct Resources {
  const MachineProfile& machine;
  Budgets asked;  // as given, before what was left open was filled in
  Budgets used;
  StepScope scope = StepScope::training;
  uint32_t ranks = 1;
  uint32_t nodes = 1;
};

// One for each resource that a step uses. REQUIRES: the machine has drives.
std::vector<ResourceChange> more_of_each(const Resources& now);

}  // namespace penstock::tools
