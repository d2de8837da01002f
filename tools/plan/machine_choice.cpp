#include "tools/plan/machine_choice.h"

#include <filesystem>
#include <set>

#include "tools/machine/shipped_machines.h"
#include "tools/nvme/profile_file.h"
#include "tools/penstock/command_line.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

std::vector<std::string> names_of_shipped() {
  std::vector<std::string> names;
  for (const MachineProfile& machine : shipped_profiles()) names.push_back(machine.name);
  return names;
}

void count_drives_once(MachineProfile& machine) {
  std::set<std::string> seen;
  std::erase_if(machine.drives,
                [&](const DriveRates& drive) { return !drive.device.empty() && !seen.insert(drive.device).second; });
}

}  // namespace

std::string shipped_machine_names() { return joined(names_of_shipped(), ", "); }

Result<MachineProfile> choose_machine(const std::string& name_or_path) {
  for (MachineProfile& machine : shipped_profiles()) {
    if (machine.name == name_or_path) return std::move(machine);
  }
  std::string path = name_or_path;
  if (path.empty()) {
    PENSTOCK_TRY_ASSIGN(usual, default_profile_path());
    path = usual;
  }
  std::error_code unknown;  // whoever reads it will say why
  const bool exists = std::filesystem::exists(path, unknown) || unknown;
  const std::string likely = nearest(name_or_path, names_of_shipped());
  const std::string remedy =
      text(exists || likely.empty() ? "" : text("--machine ", likely, ", or "),
           "measure this machine with `penstock nvme probe PATH`, or give --machine one of ", shipped_machine_names());
  if (!exists) {
    const bool named = !name_or_path.empty();
    return Status(
        Code::kUsage,
        text("machine: ", path, named ? ": neither a file nor a shipped machine" : ": this machine has no profile yet"),
        remedy);
  }
  Result<MachineProfile> found = load_or_begin_profile(path);
  if (!found.ok()) return Status(found.status().code(), found.status().message(), remedy);
  MachineProfile machine = std::move(*found);
  count_drives_once(machine);
  if (machine.drives.empty())
    return Status(Code::kUsage, text("machine: ", path, ": the profile has no drives"), remedy);
  return machine;
}

}  // namespace penstock::tools
