// The machines that `penstock plan` knows by name.
#pragma once

#include <vector>

#include "tiering/plan/machine_profile.h"

namespace penstock {

// Figures are nominal, not measured.
std::vector<MachineProfile> shipped_profiles();

}  // namespace penstock
