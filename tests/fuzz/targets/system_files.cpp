#include "tools/system/system_files.h"

#include <cmath>

#include "aio/available_memory.h"
#include "tests/fuzz/target.h"
#include "tests/fuzz/targets/scratch.h"
#include "tools/doctor/checks.h"
#include "tools/system/limits.h"

namespace penstock::fuzz {
namespace {

using namespace tools;

constexpr std::string_view kFiles[] = {"proc/self/cgroup",
                                       "proc/meminfo",
                                       "proc/cpuinfo",
                                       "sys/fs/cgroup/memory.max",
                                       "sys/fs/cgroup/memory.current",
                                       "sys/fs/cgroup/memory.stat",
                                       "sys/fs/cgroup/cpu.max",
                                       "sys/fs/cgroup/memory/memory.limit_in_bytes",
                                       "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
                                       "sys/fs/cgroup/cpu/cpu.cfs_period_us",
                                       "sys/kernel/mm/transparent_hugepage/enabled",
                                       "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"};

std::vector<Bytes> seeds() {
  return {input_of_files({"0::/user.slice/run.scope\n", "MemTotal:       32594472 kB\nMemAvailable:   20000000 kB\n",
                          "model name\t: Some CPU\nflags : avx2\n", "max\n", "5000\n",
                          "anon 3000\ninactive_file 1000\n", "150000 100000\n"}),
          input_of_files({"5:cpu,cpuacct:/job\n4:memory:/job\n", "MemTotal: 1 kB\n", "", "", "", "", "max 100000\n",
                          "9223372036854771712\n", "-1\n", "100000\n", "always [madvise] never\n", "powersave\n"}),
          input_of_files({"0::/../..\n", "", "", "1073741824\n", "1\n", "", "", "1073741824\n", "50000\n", "100000\n"}),
          Bytes()};
}

std::string run(std::span<const std::byte> input) {
  static const aio::ScratchFolder scratch(quick_folder());
  write_files(scratch, kFiles, input);
  const SystemFiles files(scratch.path());
  const std::optional<double> cores = cgroup_cpu_limit_cores(files);
  if (cores && !(std::isfinite(*cores) && *cores >= 0)) return text("a limit of ", *cores, " cores");
  const uint64_t total = meminfo_bytes(files, "MemTotal:");
  if (usable_memory_bytes(files) > total) return "more memory than there is";
  if (aio::AvailableMemory::now(scratch.path()).limited_by.empty()) return "memory that nobody limits";
  for (const Finding& finding : check_memory(files)) {
    if (finding.subject.empty() || finding.found.size() > 1000 + input.size()) return "a finding of nothing";
  }
  return check_cpu(files).empty() ? "no finding" : "";
}

constexpr std::string_view kWords[] = {
    "MemTotal:", "MemAvailable:",           "kB",         "0::", "/", ":", ",", "memory", "cpu", "max", "\n", "..", "[",
    "]",         std::string_view("\0", 1), "cpu,memory", " ",   "-", "x"};

}  // namespace

const Target system_files{.name = "system_files", .seeds = seeds, .run = run, .words = kWords, .rounds = 1500};

}  // namespace penstock::fuzz
