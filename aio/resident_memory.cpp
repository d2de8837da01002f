#include "aio/resident_memory.h"

#include <sys/resource.h>

#include <fstream>
#include <sstream>
#include <string>

#include "tiering/tier.h"

namespace penstock::aio {
namespace {

// 0 where the system does not say.
uint64_t status_bytes(const std::string& wanted) {
  std::ifstream in("/proc/self/status");
  std::string key;
  uint64_t kib;
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    if (fields >> key >> kib && key == wanted) return kib * kKiB;
  }
  return 0;
}

}  // namespace

uint64_t resident_bytes() { return status_bytes("VmRSS:"); }

uint64_t resident_bytes_peak() {
  if (const uint64_t bytes = status_bytes("VmHWM:"); bytes > 0) return bytes;
  rusage usage{};  // without a descriptor
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * kKiB;
}

void restart_resident_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

}  // namespace penstock::aio
