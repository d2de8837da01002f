// The machine profile on disk: `penstock nvme` saves its measurements there, and the planner reads them.
#pragma once

#include <string>

#include "tiering/plan/machine_profile.h"

namespace penstock::tools {

// $XDG_CONFIG_HOME/penstock/profile.json, or ~/.config/penstock/profile.json.
Result<std::string> default_profile_path();

// Where a measurement is to be kept, asked before it is made: the path that was given, whose folder must be there and
// may be written to, or, where none was, the default path, whose folder is made by save_profile().
Result<std::string> profile_path_to_write(const std::string& given);

// The profile there; one of this machine without drives where there is none. A file that is no profile is refused.
Result<MachineProfile> load_or_begin_profile(const std::string& path);

// The folder's absolute path: its drive's name in a profile.
std::string profile_name_of(const std::string& folder);

// This machine's processors and memory, as far as they may be used, and the rate at which they update.
void put_host(MachineProfile& profile, double update_gbps);

// Adds a drive, or replaces the one of the same path. What was known of it besides burst rates stays.
void put_drive(MachineProfile& profile, DriveRates drive);

// Replaces the file at once or not at all; makes its folder if there is none.
Status save_profile(const MachineProfile& profile, const std::string& path);

}  // namespace penstock::tools
