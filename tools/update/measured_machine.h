// The rates that a run is predicted from, measured in a few seconds on the drives and processor it will use.
#pragma once

#include <string>
#include <vector>

#include "tiering/machine_profile.h"
#include "tiering/state_layout.h"
#include "tools/nvme/rig.h"

namespace penstock::tools {

// `seconds` on each point of the mix curve, on scratch files in `folders`. Takes about `memory_bytes` at most.
Result<MachineProfile> measure_machine(const std::vector<std::string>& folders, const StateForm& form, double seconds,
                                       uint64_t memory_bytes, const Tick& tick);

}  // namespace penstock::tools
