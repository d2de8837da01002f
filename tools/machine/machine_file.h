// The file of a machine's measured rates, written by `penstock nvme probe` and read by everything that makes plans.
#pragma once

#include <string>

#include "tiering/plan/machine_profile.h"
#include "tiering/status.h"

namespace penstock {

// Refuses what is not a JSON object and rates that no machine has. A rate that is absent is unknown.
Result<MachineProfile> parse_machine_profile(const std::string& json);
std::string to_json(const MachineProfile& profile);

}  // namespace penstock
