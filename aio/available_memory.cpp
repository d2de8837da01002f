#include "aio/available_memory.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "tiering/check.h"
#include "tiering/tier.h"

namespace penstock::aio {
namespace {

namespace fs = std::filesystem;

// The number in the first line. Nothing for "max", or if the file does not exist.
bool read_number(const fs::path& path, uint64_t& number) {
  std::ifstream in(path);
  return static_cast<bool>(in >> number);
}

enum class Counted { what_is_free, everything };

uint64_t on_machine(const std::string& root, Counted counted) {
  const char* const wanted = counted == Counted::everything ? "MemTotal:" : "MemAvailable:";
  std::ifstream in(root + "/proc/meminfo");
  std::string key;
  uint64_t kib;
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    if (fields >> key >> kib && key == wanted) {
      return std::min(kib, std::numeric_limits<uint64_t>::max() / kKiB) * kKiB;
    }
  }
  // Does not count what caches would give back, but needs neither /proc nor a descriptor.
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return 0;
  return uint64_t{counted == Counted::everything ? info.totalram : info.freeram} * info.mem_unit;
}

struct Hierarchy {
  const char* limit;
  const char* usage;
  // The lines of memory.stat with what of files the kernel gives back before it refuses: a file that was read twice,
  // as weights are for their codes and then for the scales, is active. What is mapped are programs and libraries, which
  // would have to come back.
  const char* inactive;
  const char* active;
  const char* mapped;
};
constexpr Hierarchy kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                                 "total_active_file", "total_mapped_file"};
constexpr Hierarchy kVersion2 = {"memory.max", "memory.current", "inactive_file", "active_file", "file_mapped"};

uint64_t reclaimable(const fs::path& group, const Hierarchy& names) {
  std::ifstream in(group / "memory.stat");
  std::string key;
  uint64_t bytes, inactive = 0, active = 0, mapped = 0;
  while (in >> key >> bytes) {
    if (key == names.inactive) inactive = bytes;
    if (key == names.active) active = bytes;
    if (key == names.mapped) mapped = bytes;
  }
  active -= std::min(active, mapped);
  return inactive + std::min(active, std::numeric_limits<uint64_t>::max() - inactive);
}

// The folder of this process's group and all folders above it. In a container the path may be the host's while the
// mount begins at the container's group, so folders that do not exist are skipped.
void limit_by(const fs::path& root, const std::string& group, const Hierarchy& names, Counted counted,
              AvailableMemory& available) {
  for (fs::path path = group;; path = path.parent_path()) {
    const fs::path folder = root / path.relative_path();
    uint64_t limit, usage;
    if (read_number(folder / names.limit, limit) && read_number(folder / names.usage, usage)) {
      const uint64_t used = counted == Counted::everything ? 0 : usage - std::min(usage, reclaimable(folder, names));
      const uint64_t rest = limit - std::min(limit, used);
      if (rest < available.bytes) available = {rest, text("the limit of control group ", path.string())};
    }
    if (path == path.root_path() || path.empty()) return;
  }
}

AvailableMemory memory_of(const std::string& root, Counted counted) {
  AvailableMemory available{on_machine(root, counted), "the machine's memory"};
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers.find(",memory,") != std::string::npos)
      limit_by(root + "/sys/fs/cgroup/memory", group, kVersion1, counted, available);
    if (controllers == ",,") limit_by(root + "/sys/fs/cgroup", group, kVersion2, counted, available);
  }
  return available;
}

}  // namespace

AvailableMemory AvailableMemory::now(const std::string& root) { return memory_of(root, Counted::what_is_free); }
AvailableMemory AvailableMemory::at_most(const std::string& root) { return memory_of(root, Counted::everything); }

uint64_t free_huge_page_bytes(const std::string& root) {
  uint64_t pages = 0;
  read_number(root + "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", pages);
  return pages * 2 * kMiB;
}

}  // namespace penstock::aio
