// The memory and processors that this process may use, within cgroups and affinity.
#pragma once

#include <cstdint>
#include <optional>

#include "tools/system/system_files.h"

namespace penstock::tools {

// The smallest memory limit of the cgroups that this process is in, v1 or v2; nothing when none limits it.
std::optional<uint64_t> cgroup_memory_limit_bytes(const SystemFiles& files);

// "VmRSS:    1234 kB" in the file at `path`; 0 where that is not told.
uint64_t kib_line_bytes(const SystemFiles& files, const std::string& path, const std::string& key);

// A figure of /proc/meminfo, such as "MemTotal:"; 0 where it is not told.
uint64_t meminfo_bytes(const SystemFiles& files, const std::string& key);

// The machine's memory, or what the cgroups allow of it.
uint64_t usable_memory_bytes(const SystemFiles& files);

// Processor time that the cgroups allow, in cores; nothing when none limits it.
std::optional<double> cgroup_cpu_limit_cores(const SystemFiles& files);

// Processors that this process may run on.
uint32_t usable_processors();

}  // namespace penstock::tools
