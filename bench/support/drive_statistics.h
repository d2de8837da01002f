// The kernel's counters of a block device since boot.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::bench {

struct DriveStatistics {
  uint64_t read_bytes = 0, written_bytes = 0;
  uint64_t discards = 0;  // requests to forget blocks
};

// `device` as aio::describe_drive names it, "nvme0n1". None where the kernel does not tell.
std::optional<DriveStatistics> drive_statistics(const std::string& device);

// Of the block devices below the folders together, each counted once; those that the kernel does not tell of as 0.
DriveStatistics drive_statistics_below(const std::vector<std::string>& folders);

}  // namespace penstock::bench
