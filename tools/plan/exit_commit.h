// What is left to write where a run ends with a step that is not durable: the state that rests in memory, once, and the
// root that makes the step real. It comes after the last step, so that no step's time has it.
#pragma once

#include <optional>

#include "tiering/plan/machine_profile.h"
#include "tiering/plan/plan.h"

namespace penstock::tools {

struct ExitCommit {
  uint64_t written_bytes = 0;
  double seconds = 0;  // 0: nobody knows the drives' rates
};

// Of one rank. Nothing where every step is durable, or where no state rests in memory. With `every`, what a run pays
// that ends between two durable steps.
std::optional<ExitCommit> commit_at_exit(const Plan& plan, const MachineProfile& machine);

}  // namespace penstock::tools
