#include "bench/support/drive_statistics.h"

#include <fstream>
#include <set>

#include "aio/drive_info.h"

namespace penstock::bench {

std::optional<DriveStatistics> drive_statistics(const std::string& device) {
  // Documentation/admin-guide/iostats.rst has the fields.
  constexpr int kRead = 2, kWritten = 6, kFields = 11, kSectorBytes = 512;
  std::ifstream file("/sys/class/block/" + device + "/stat");
  uint64_t fields[kFields] = {};
  for (uint64_t& field : fields) file >> field;
  if (!file) return std::nullopt;
  DriveStatistics statistics{fields[kRead] * kSectorBytes, fields[kWritten] * kSectorBytes, 0};
  file >> statistics.discards;  // kernels before 4.18 end here
  return statistics;
}

DriveStatistics drive_statistics_below(const std::vector<std::string>& folders) {
  DriveStatistics sum;
  std::set<std::string> seen;
  for (const std::string& folder : folders) {
    const Result<aio::DriveInfo> drive = aio::describe_drive(folder);
    if (!drive.ok() || drive->device.empty() || !seen.insert(drive->device).second) continue;
    const DriveStatistics statistics = drive_statistics(drive->device).value_or(DriveStatistics());
    sum.read_bytes += statistics.read_bytes;
    sum.written_bytes += statistics.written_bytes;
    sum.discards += statistics.discards;
  }
  return sum;
}

}  // namespace penstock::bench
