// DriveInfo says which drive a path lies on, and what the system knows about that drive.
#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <string>

#include "tiering/status.h"

namespace penstock::aio {

struct DriveInfo {
  // Equal for two paths whose bytes end up on one device, through partitions and loop devices. It is the device's
  // number, or the file system's if there is no device (tmpfs, network).
  uint32_t id = 0;
  std::string device;       // "nvme0n1"; empty if there is no block device
  std::string beneath;      // "loop3 on /srv/image" if the file system lies in a file
  std::string file_system;  // "ext4"
  std::string mount_point;
  uint64_t free_bytes = 0;  // for this user
  uint64_t total_bytes = 0;

  std::string model;      // this and the following are empty if the system does not say
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

// What describe_drive() reads from the kernel's text files.

struct Mount {
  std::string point;
  std::string file_system;
  std::string source;
};
// From /proc/self/mountinfo: the longest mount point that holds the path. Of equal ones the last, which hides the
// others.
Mount mount_in(std::istream& mountinfo, const std::string& real_path);

// Fills in what sysfs says about the disk whose folder this is.
void describe_disk(const std::string& folder, DriveInfo& info);

}  // namespace penstock::aio
