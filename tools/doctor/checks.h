// The doctor's checks. Each looks at one part of the machine and changes nothing.
#pragma once

#include <string>

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

}  // namespace penstock::tools
