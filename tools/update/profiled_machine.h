// The rates for predicting a run, from a profile of `penstock nvme probe`.
#pragma once

#include <string>
#include <vector>

#include "tiering/plan/machine_profile.h"

namespace penstock::tools {

// Of the profile, the drives that the folders lie on, in the folders' order, the processors, and links between ranks.
// Refused where it does not have the first two. REQUIRES: the folders exist.
Result<MachineProfile> machine_of_profile(const std::string& profile_path, const std::vector<std::string>& folders);

}  // namespace penstock::tools
