#include <algorithm>
#include <iterator>
#include <sstream>

#include "tiering/check.h"
#include "tools/doctor/checks.h"
#include "tools/system/limits.h"

namespace penstock::tools {
namespace {

Finding cores_finding(const SystemFiles& files) {
  const uint32_t cores = usable_processors();
  const std::string model = files.value_of("/proc/cpuinfo", "model name").value_or("model unknown");
  const std::string found = text(model, ", ", cores, " usable cores");
  const auto limit = cgroup_cpu_limit_cores(files);
  if (!limit || *limit >= cores) return {"processor", Level::good, found, "", ""};
  return {"processor", Level::note, text(found, ", but the cgroup limits CPU time to ", *limit),
          "threads beyond the limit are stopped in the middle of an update", text("docker run --cpus=", cores, " ...")};
}

Finding vector_finding(const SystemFiles& files) {
#if defined(__x86_64__)
  std::istringstream in(files.value_of("/proc/cpuinfo", "flags").value_or(""));
  const std::vector<std::string> flags{std::istream_iterator<std::string>(in), {}};
  auto has = [&](const char* flag) { return std::find(flags.begin(), flags.end(), flag) != flags.end(); };
  if (has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl")) {
    return {"vector units", Level::good, text("AVX-512", has("avx512_bf16") ? " with bf16" : ""),
            "the widest kernels are used", ""};
  }
  if (has("avx2") && has("fma")) return {"vector units", Level::good, "AVX2 and FMA", "256-bit kernels are used", ""};
  return {"vector units", Level::note, "SSE2 only", "updates use 128-bit kernels, which give the same numbers",
          "if this is a virtual machine, pass the host's processor through: qemu -cpu host"};
#else
  (void)files;
  return {"vector units", Level::good, "NEON", "128-bit kernels are used", ""};
#endif
}

Finding governor_finding(const SystemFiles& files) {
  const auto governor = files.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (!governor || *governor == "performance") {
    return {"clock", Level::good, governor ? "governor performance" : "this system does not control it", "", ""};
  }
  return {"clock", Level::note, "governor " + *governor, "the clock may not rise in time for short bursts of updates",
          "sudo cpupower frequency-set -g performance"};
}

}  // namespace

Findings check_cpu(const SystemFiles& files) {
  return {cores_finding(files), vector_finding(files), governor_finding(files)};
}

}  // namespace penstock::tools
