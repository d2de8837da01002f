#include <sys/resource.h>
#include <unistd.h>

#include "tiering/check.h"
#include "tiering/tier.h"
#include "tools/doctor/checks.h"
#include "tools/system/limits.h"

namespace penstock::tools {
namespace {

Finding memory_finding(const SystemFiles& files) {
  const uint64_t total = meminfo_bytes(files, "MemTotal:"), available = meminfo_bytes(files, "MemAvailable:");
  return {"memory", Level::good, text(bytes_text(total), ", ", bytes_text(available), " available"), "", ""};
}

Finding cgroup_finding(const SystemFiles& files) {
  const auto limit = cgroup_memory_limit_bytes(files);
  const uint64_t total = meminfo_bytes(files, "MemTotal:");
  if (!limit || *limit >= total) return {"memory limit", Level::good, "no cgroup limits it", "", ""};
  return {
      "memory limit", Level::note, text("the cgroup allows ", bytes_text(*limit), " of ", bytes_text(total)),
      "host budgets stay below the limit; beyond it the kernel kills the process",
      text("docker run --memory=", total / kGiB, "g ...   or   sudo systemctl set-property UNIT MemoryMax=infinity")};
}

Finding memlock_finding() {
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (geteuid() == 0) return {"memlock", Level::good, "root: no limit applies", "all buffers are registered", ""};
  if (limit.rlim_cur == RLIM_INFINITY) return {"memlock", Level::good, "unlimited", "all buffers are registered", ""};
  return {"memlock", Level::note, text(bytes_text(limit.rlim_cur)),
          "buffers beyond it are used unregistered: same bandwidth, a little more CPU per GB",
          text("echo \"$USER - memlock unlimited\" | sudo tee /etc/security/limits.d/penstock.conf, then log in again;"
               " in a container: docker run --ulimit memlock=-1 ...")};
}

// "always [madvise] never" has the chosen word in brackets.
std::string chosen_word(const std::string& line) {
  const size_t open = line.find('['), close = line.find(']', open);
  return open == std::string::npos || close == std::string::npos ? line : line.substr(open + 1, close - open - 1);
}

Finding transparent_finding(const SystemFiles& files) {
  const auto line = files.read("/sys/kernel/mm/transparent_hugepage/enabled");
  const std::string chosen = line ? chosen_word(*line) : "not built into this kernel";
  if (chosen == "always" || chosen == "madvise") {
    return {"transparent huge pages", Level::good, chosen, "buffers lie in 2 MiB pages without any reservation", ""};
  }
  return {"transparent huge pages", Level::note, chosen,
          "without explicit huge pages, buffers lie in 4 KiB pages: up to half the drive's bandwidth is lost",
          line ? "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
               : "sudo sysctl -w vm.nr_hugepages=512"};
}

Finding explicit_finding(const SystemFiles& files) {
  const std::string folder = "/sys/kernel/mm/hugepages/hugepages-2048kB";
  const auto total = files.read_number(folder + "/nr_hugepages");
  const auto free = files.read_number(folder + "/free_hugepages");
  if (!total) return {"huge pages", Level::note, "the kernel has no 2 MiB pages", "small pages are used", ""};
  return {"huge pages", Level::good, text(*total, " of 2 MiB reserved, ", free.value_or(0), " free"),
          *total == 0 ? "transparent ones are used instead" : "used first, then transparent ones", ""};
}

Finding numa_finding(const SystemFiles& files) {
  size_t nodes = 0;
  for (const std::string& name : files.list("/sys/devices/system/node")) {
    if (name.starts_with("node") && name.size() > 4 && name[4] >= '0' && name[4] <= '9') ++nodes;
  }
  if (nodes <= 1) return {"NUMA", Level::good, "one node", "", ""};
  return {"NUMA", Level::good, text(nodes, " nodes"), "buffers belong on the node of the drive and of the GPU",
          "numactl --cpunodebind=N --membind=N penstock ..."};
}

}  // namespace

Findings check_memory(const SystemFiles& files) {
  return {memory_finding(files),      cgroup_finding(files),   memlock_finding(),
          transparent_finding(files), explicit_finding(files), numa_finding(files)};
}

}  // namespace penstock::tools
