// The machine to plan for: a shipped one by name, a profile in a file, or this one's profile from `penstock nvme
// probe`.
#pragma once

#include <string>

#include "tiering/plan/machine_profile.h"

namespace penstock::tools {

// Empty: this machine. Paths on one drive count once.
Result<MachineProfile> choose_machine(const std::string& name_or_path);

std::string shipped_machine_names();

}  // namespace penstock::tools
