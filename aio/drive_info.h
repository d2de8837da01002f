// DriveInfo: which drive lies below a path, and what the system tells about it.
#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <string>

#include "tiering/status.h"

namespace penstock::aio {

struct DriveInfo {
  // The same for two paths whose bytes end on one device, through partitions and loop devices. It is its device number,
  // or that of the file system where no device is below (tmpfs, network).
  uint32_t id = 0;
  std::string device;       // "nvme0n1"; empty where no block device is below
  std::string beneath;      // "loop3 on /srv/image" if the file system lies in a file
  std::string file_system;  // "ext4"
  std::string mount_point;
  uint64_t free_bytes = 0;  // for this user
  uint64_t total_bytes = 0;

  std::string model;      // each empty, or nothing, where the system does not tell
  std::string pcie_link;  // "32.0 GT/s PCIe x4"
  std::optional<double> temperature_celsius;
  bool rotational = false;
  std::string scheduler;
  uint32_t nr_requests = 0;
  uint64_t request_bytes_max = 0;

  bool in_memory() const { return file_system == "tmpfs" || file_system == "ramfs" || file_system == "devtmpfs"; }
};

// `path` may be a file or a folder.
Result<DriveInfo> describe_drive(const std::string& path);

// What describe_drive() reads of the kernel's texts.

struct Mount {
  std::string point;
  std::string file_system;
  std::string source;
};
// Of /proc/self/mountinfo: the longest mount point that holds the path; of equal ones the last, which hides the others.
Mount mount_in(std::istream& mountinfo, const std::string& real_path);

// Fills in what sysfs tells of the disk with that folder.
void describe_disk(const std::string& folder, DriveInfo& info);

}  // namespace penstock::aio
