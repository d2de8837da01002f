// The doctor's checks. Each looks at one part of the machine and changes nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tiering/status.h"
#include "tools/doctor/finding.h"
#include "tools/system/system_files.h"

namespace penstock::tools {

// Kernel release, io_uring and what it offers, libaio, seccomp.
Findings check_kernel(const SystemFiles& files);

// Memory and its limits: cgroup, memlock, huge pages, NUMA.
Findings check_memory(const SystemFiles& files);

// Cores, their vector units, and limits on them.
Findings check_cpu(const SystemFiles& files);

// The NVIDIA driver and its devices.
Findings check_cuda(const SystemFiles& files);

// Programs and packages that some verbs use: fio, torch.
Findings check_software();

// The folder `path` as a place for training state. A path that is no folder is refused.
Result<Findings> check_drive(const std::string& path);

// The smallest memory limit of the cgroups that this process is in, v1 or v2; nothing when none limits it.
std::optional<uint64_t> cgroup_memory_limit_bytes(const SystemFiles& files);

// Processor time that the cgroups allow, in cores; nothing when none limits it.
std::optional<double> cgroup_cpu_limit_cores(const SystemFiles& files);

}  // namespace penstock::tools
