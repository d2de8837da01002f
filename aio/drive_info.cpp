#include "aio/drive_info.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "tiering/tier.h"

namespace penstock::aio {
namespace {

namespace fs = std::filesystem;

constexpr int kLoopsMax = 8;  // images within images; more is a circle

std::string first_line(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

uint64_t number_in(const fs::path& path) { return std::strtoull(first_line(path).c_str(), nullptr, 10); }

// "\040" is a space there.
std::string unescape(const std::string& field) {
  std::string out;
  for (size_t i = 0; i < field.size(); ++i) {
    if (field[i] == '\\' && i + 3 < field.size()) {
      out += static_cast<char>(std::strtol(field.substr(i + 1, 3).c_str(), nullptr, 8));
      i += 3;
    } else {
      out += field[i];
    }
  }
  return out;
}

bool lies_in(const std::string& path, const std::string& folder) {
  return folder == "/" || path == folder || path.starts_with(folder + "/");
}

Mount mount_of(const std::string& real_path) {
  std::ifstream in("/proc/self/mountinfo");
  return mount_in(in, real_path);
}

// btrfs and others give their files a number that no device has; then the mount's source is the device.
dev_t device_number(const struct stat& file, const Mount& mount) {
  if (major(file.st_dev) != 0) return file.st_dev;
  struct stat source;
  if (stat(mount.source.c_str(), &source) == 0 && S_ISBLK(source.st_mode)) return source.st_rdev;
  return file.st_dev;
}

// The sysfs folder of the whole disk with that device number; empty if there is none.
fs::path disk_folder(dev_t number) {
  std::error_code none;
  fs::path folder = fs::canonical(text("/sys/dev/block/", major(number), ":", minor(number)), none);
  if (none) return {};
  return fs::exists(folder / "partition", none) ? folder.parent_path() : folder;
}

uint32_t id_of(dev_t number) { return static_cast<uint32_t>(major(number) << 20 | minor(number)); }

// Parses "259:1"; 0 if it cannot.
uint32_t id_in(const fs::path& folder) {
  std::istringstream numbers(first_line(folder / "dev"));
  uint32_t of_kind = 0, of_device = 0;
  char colon = 0;
  numbers >> of_kind >> colon >> of_device;
  return numbers && colon == ':' ? of_kind << 20 | of_device : 0;
}

// A drive's own PCIe function lies one or two folders above the block device: nvme0n1 -> nvme0 -> 0000:01:00.0.
std::string pcie_link(const fs::path& disk) {
  for (const char* up : {"device", "device/device"}) {
    const std::string speed = first_line(disk / up / "current_link_speed");
    if (!speed.empty()) return speed + " x" + first_line(disk / up / "current_link_width");
  }
  return {};
}

std::optional<double> temperature(const fs::path& disk) {
  std::error_code none;
  for (const char* place : {"device", "device/hwmon", "device/device/hwmon"}) {
    for (const auto& entry : fs::directory_iterator(disk / place, none)) {
      const std::string millidegrees = first_line(entry.path() / "temp1_input");
      int32_t number = 0;
      if (std::istringstream(millidegrees) >> number) return number / 1000.0;
    }
  }
  return std::nullopt;
}

// "[mq-deadline] none" has the one in use in brackets.
std::string scheduler(const fs::path& disk) {
  const std::string all = first_line(disk / "queue/scheduler");
  const size_t open = all.find('['), close = all.find(']', open);
  return open == std::string::npos || close == std::string::npos ? all : all.substr(open + 1, close - open - 1);
}

}  // namespace

Mount mount_in(std::istream& mountinfo, const std::string& real_path) {
  Mount best;
  for (std::string line; std::getline(mountinfo, line);) {
    std::istringstream fields(line);
    std::string id, parent, numbers, root, point, field;
    fields >> id >> parent >> numbers >> root >> point;
    while (fields >> field && field != "-") {
    }
    Mount mount{unescape(point), {}, {}};
    fields >> mount.file_system >> mount.source;
    mount.source = unescape(mount.source);
    if (lies_in(real_path, mount.point) && mount.point.size() >= best.point.size()) best = mount;
  }
  return best;
}

void describe_disk(const std::string& folder, DriveInfo& info) {
  const fs::path disk = folder;
  info.id = id_in(disk);
  info.device = disk.filename();
  info.model = first_line(disk / "device/model");
  info.pcie_link = pcie_link(disk);
  info.temperature_celsius = temperature(disk);
  info.rotational = first_line(disk / "queue/rotational") == "1";
  info.scheduler = scheduler(disk);
  info.nr_requests = static_cast<uint32_t>(number_in(disk / "queue/nr_requests"));
  info.request_bytes_max = std::min(number_in(disk / "queue/max_sectors_kb"), kGiB / kKiB) * kKiB;
}

Result<DriveInfo> describe_drive(const std::string& path) {
  struct stat file;
  struct statvfs space;
  if (stat(path.c_str(), &file) != 0 || statvfs(path.c_str(), &space) != 0) {
    return errno_status(path, errno, "give a file or a folder that exists");
  }
  std::error_code error;
  const std::string real_path = fs::canonical(path, error);
  const Mount mount = mount_of(real_path);

  DriveInfo info;
  info.file_system = mount.file_system;
  info.mount_point = mount.point;
  info.free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  info.total_bytes = uint64_t{space.f_blocks} * space.f_frsize;
  const dev_t number = device_number(file, mount);
  info.id = id_of(number);

  fs::path disk = disk_folder(number);
  for (int depth = 0; !disk.empty() && depth < kLoopsMax; ++depth) {
    describe_disk(disk, info);
    const std::string image = first_line(disk / "loop/backing_file");
    struct stat image_file;
    if (image.empty() || stat(image.c_str(), &image_file) != 0) break;
    info.beneath = text(disk.filename().string(), " on ", image);
    disk = disk_folder(device_number(image_file, mount_of(image)));
  }
  return info;
}

}  // namespace penstock::aio
