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
// Memory traffic of the update pass with all threads, counted as the planner counts it.
constexpr uint64_t kUpdateMemoryBytes = 96 * kMiB;  // more than any cache holds
double measure_update_gbps(const StateForm& form, uint32_t threads, uint64_t memory_bytes = kUpdateMemoryBytes);

}  // namespace penstock::tools
