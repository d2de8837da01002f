#include "tools/update/profiled_machine.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "aio/drive_info.h"
#include "tools/nvme/profile_file.h"

namespace penstock::tools {
namespace {

std::optional<dev_t> file_system_of(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) return std::nullopt;
  return found.st_dev;
}

bool on_one_file_system(const std::string& a, const std::string& b) {
  const std::optional<dev_t> of_a = file_system_of(a);
  return of_a && of_a == file_system_of(b);
}

const char* or_none(const std::string& device) { return device.empty() ? "no device" : device.c_str(); }

// Where a probe may write its scratch file: not a folder that goes away with the run that made it.
std::string place_to_probe(const std::string& folder) {
  const std::string above = std::filesystem::path(profile_name_of(folder)).parent_path();
  return access(above.c_str(), W_OK | X_OK) == 0 ? above : folder;
}

Result<DriveRates> drive_of(const MachineProfile& profile, const std::string& folder) {
  PENSTOCK_TRY_ASSIGN(here, aio::describe_drive(folder));
  const DriveRates* same_device = nullptr;
  const DriveRates* renamed = nullptr;
  for (const DriveRates& drive : profile.drives) {
    const bool same = drive.device == here.device;
    if (on_one_file_system(drive.path, folder)) {
      if (same) return drive;
      renamed = &drive;
    } else if (same && !here.device.empty() && here.beneath.empty()) {  // a file system in a file has rates of its own
      same_device = &drive;
    }
  }
  if (same_device != nullptr) return *same_device;
  if (renamed != nullptr) {
    return Status(Code::kUsage, text("has ", or_none(renamed->device), " at ", renamed->path, ", where ",
                                     or_none(here.device), " is now"));
  }
  return Status(Code::kUsage, text("lacks the drive of ", folder, " (", or_none(here.device), ")"));
}

}  // namespace

Result<MachineProfile> machine_of_profile(const std::string& profile_path, const std::vector<std::string>& folders) {
  const std::string or_measure = "leave --machine out, and the drives are measured for some seconds";
  if (access(profile_path.c_str(), F_OK) != 0) {
    return errno_status("read profile: " + profile_path, errno,
                        "measure one with `penstock nvme probe`, which prints its path; or " + or_measure);
  }
  const Result<MachineProfile> profile = load_or_begin_profile(profile_path);
  if (!profile.ok()) return Status(profile.status().code(), profile.status().message(), or_measure);

  std::string probe = "`penstock nvme probe";
  for (const std::string& folder : folders) probe += " " + place_to_probe(folder);
  probe += " --profile " + profile_path + "` measures what is missing; or " + or_measure;
  auto refused = [&](const std::string& why) {
    return Status(Code::kUsage, text("use profile: ", profile_path, ": ", why), probe);
  };
  MachineProfile machine;
  machine.name = profile->name;
  machine.host_gbps = profile->host_gbps;
  machine.network_gbps = profile->network_gbps;
  // That of devices is of their own links: engines gather in host memory.
  if (profile->devices == 0) machine.collective_gbps = profile->collective_gbps;
  if (machine.host_gbps == 0) return refused("lacks host_gbps, the rate of updates");
  for (const std::string& folder : folders) {
    const Result<DriveRates> drive = drive_of(*profile, folder);
    if (!drive.ok()) return refused(drive.status().message());
    machine.drives.push_back(*drive);
    machine.drives.back().path = folder;
  }
  return machine;
}

}  // namespace penstock::tools
