#include "tools/nvme/profile_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "tiering/tier.h"
#include "tools/machine/machine_file.h"
#include "tools/system/limits.h"
#include "tools/system/system_files.h"

namespace penstock::tools {
namespace {

constexpr off_t kFileBytesMost = off_t{16} << 20;
constexpr const char* kSchema = "\"penstock.machine/";
constexpr const char* kElsewhere = "--profile FILE for another path";

MachineProfile this_machine() {
  const SystemFiles files;
  MachineProfile profile;
  profile.name = files.value_of("/proc/cpuinfo", "model name").value_or("this machine");
  profile.threads = usable_processors();
  profile.host_bytes = usable_memory_bytes(files);
  return profile;
}

Status write_whole(const std::string& path, const std::string& content) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return errno_status("write profile: " + path, errno, kElsewhere);
  const ssize_t written = write(file, content.data(), content.size());
  const int error = errno;
  const bool synced = fsync(file) == 0;
  close(file);
  if (written == static_cast<ssize_t>(content.size()) && synced) return {};
  unlink(path.c_str());
  return errno_status("write profile: " + path, written < 0 ? error : errno, kElsewhere);
}

}  // namespace

Result<std::string> default_profile_path() {
  const char* const config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config == '/') return std::string(config) + "/penstock/profile.json";
  const char* const home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return std::string(home) + "/.config/penstock/profile.json";
  return Status(Code::kUsage, "find profile: neither XDG_CONFIG_HOME nor HOME is an absolute path", "--profile FILE");
}

Result<std::string> profile_path_to_write(const std::string& given) {
  if (given.empty()) return default_profile_path();
  const std::filesystem::path folder = std::filesystem::path(given).parent_path();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK) != 0) {
    return errno_status("write profile: " + given, errno, kElsewhere);
  }
  return given;
}

Result<MachineProfile> load_or_begin_profile(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return this_machine();
    return errno_status("read profile: " + path, errno, kElsewhere);
  }
  if (!S_ISREG(found.st_mode)) return Status(Code::kUsage, "read profile: " + path + ": a file expected", kElsewhere);
  if (found.st_size > kFileBytesMost) {
    return Status(Code::kUsage,
                  text("read profile: ", path, ": not a machine profile: ", found.st_size, " B, at most ",
                       kFileBytesMost, " B expected"),
                  kElsewhere);
  }
  const auto content = SystemFiles().read(path);
  if (!content) return Status(Code::kEnvironment, "read profile: " + path + ": cannot be read", kElsewhere);
  if (content->find(kSchema) == std::string::npos) {
    return Status(Code::kUsage, "read profile: " + path + ": not a machine profile", kElsewhere);
  }
  Result<MachineProfile> profile = parse_machine_profile(*content);
  if (!profile.ok()) return profile.status().within(path);
  return profile;
}

std::string profile_name_of(const std::string& folder) {
  std::error_code error;
  return std::filesystem::canonical(folder, error);
}

void put_host(MachineProfile& profile, double update_gbps) {
  MachineProfile host = this_machine();
  profile.name = host.name;
  profile.threads = host.threads;
  profile.host_bytes = host.host_bytes;
  profile.host_gbps = update_gbps;
}

void put_drive(MachineProfile& profile, DriveRates drive) {
  for (DriveRates& known : profile.drives) {
    if (known.path != drive.path) continue;
    if (known.device == drive.device) {
      if (!drive.sustained) drive.sustained = known.sustained;
      if (drive.endurance_bytes == 0) drive.endurance_bytes = known.endurance_bytes;
    }
    known = std::move(drive);
    return;
  }
  profile.drives.push_back(std::move(drive));
}

Status save_profile(const MachineProfile& profile, const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return errno_status("make folder: " + folder.string(), error.value(), kElsewhere);
  const std::string fresh = path + ".new";
  PENSTOCK_TRY(write_whole(fresh, to_json(profile) + "\n"));
  if (rename(fresh.c_str(), path.c_str()) != 0) {
    const int refused = errno;
    unlink(fresh.c_str());
    return errno_status("write profile: " + path, refused, kElsewhere);
  }
  return {};
}

}  // namespace penstock::tools
