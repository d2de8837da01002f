#include "tools/system/limits.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include "cpu_optim/processor_set.h"
#include "tiering/tier.h"

namespace penstock::tools {
namespace {

// A cgroup without a limit says so with a huge number in v1.
constexpr uint64_t kNoLimitBytes = uint64_t{1} << 60;

// The path of this process under `controller`: "" names v2's single tree.
std::optional<std::string> group_of(const SystemFiles& files, const std::string& controller) {
  for (const std::string& line : lines_of(files.read("/proc/self/cgroup").value_or(""))) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers.find("," + controller + ",") != std::string::npos) return line.substr(second + 1);
  }
  return std::nullopt;
}

// Calls `visit` with the folder of the group, then of each group around it. In a container the path is that of the
// host while the mount shows only the container's own group, so the mount itself always counts.
void walk_up(const std::string& mount, std::string group, const std::function<void(const std::string&)>& visit) {
  while (!group.empty() && group != "/") {
    visit(mount + group);
    const size_t slash = group.rfind('/');
    group.resize(slash == std::string::npos ? 0 : slash);
  }
  visit(mount);
}

template <typename T>
void keep_smaller(std::optional<T>& limit, T value) {
  limit = limit ? std::min(*limit, value) : value;
}

}  // namespace

std::optional<uint64_t> cgroup_memory_limit_bytes(const SystemFiles& files) {
  std::optional<uint64_t> limit;
  auto keep = [&](const std::string& path) {
    const auto bytes = files.read_number(path);  // "max" is no number
    if (bytes && *bytes < kNoLimitBytes) keep_smaller(limit, *bytes);
  };
  if (const auto group = group_of(files, "")) {
    walk_up("/sys/fs/cgroup", *group, [&](const std::string& folder) { keep(folder + "/memory.max"); });
  }
  if (const auto group = group_of(files, "memory")) {
    walk_up("/sys/fs/cgroup/memory", *group,
            [&](const std::string& folder) { keep(folder + "/memory.limit_in_bytes"); });
  }
  return limit;
}

std::optional<double> cgroup_cpu_limit_cores(const SystemFiles& files) {
  std::optional<double> limit;
  if (const auto group = group_of(files, "")) {
    walk_up("/sys/fs/cgroup", *group, [&](const std::string& folder) {
      const std::string line = files.read(folder + "/cpu.max").value_or("max");  // "200000 100000"
      double quota = 0, period = 0;
      const auto [middle, error] = std::from_chars(line.data(), line.data() + line.size(), quota);
      if (error != std::errc()) return;
      const char* const next = std::min(middle + 1, line.data() + line.size());
      if (std::from_chars(next, line.data() + line.size(), period).ec != std::errc()) return;
      const double cores = quota / period;
      if (cores > 0 && std::isfinite(cores)) keep_smaller(limit, cores);
    });
  }
  if (const auto group = group_of(files, "cpu")) {
    walk_up("/sys/fs/cgroup/cpu", *group, [&](const std::string& folder) {
      const auto quota = files.read_number(folder + "/cpu.cfs_quota_us");  // -1 is no number of ours
      const auto period = files.read_number(folder + "/cpu.cfs_period_us");
      if (quota && period && *period > 0) {
        keep_smaller(limit, static_cast<double>(*quota) / static_cast<double>(*period));
      }
    });
  }
  return limit;
}

uint64_t kib_line_bytes(const SystemFiles& files, const std::string& path, const std::string& key) {
  const std::string value = files.value_of(path, key).value_or("");
  uint64_t kib = 0;
  std::from_chars(value.data(), value.data() + value.size(), kib);
  return kib < kNoLimitBytes / kKiB ? kib * kKiB : 0;
}

uint64_t meminfo_bytes(const SystemFiles& files, const std::string& key) {
  return kib_line_bytes(files, "/proc/meminfo", key);
}

uint64_t usable_memory_bytes(const SystemFiles& files) {
  const uint64_t total = meminfo_bytes(files, "MemTotal:");
  return std::min(total, cgroup_memory_limit_bytes(files).value_or(total));
}

uint32_t usable_processors() { return static_cast<uint32_t>(cpu_optim::ProcessorSet::allowed().count()); }

}  // namespace penstock::tools
