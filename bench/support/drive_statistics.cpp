#include "bench/support/drive_statistics.h"

#include <fstream>

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

}  // namespace penstock::bench
