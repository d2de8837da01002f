#include "tools/nvme/huge_pages.h"

#include <algorithm>
#include <fstream>

#include "tiering/tier.h"
#include "tools/system/system_files.h"

namespace penstock::tools {
namespace {

constexpr const char* kReserved = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
constexpr const char* kFree = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

void reserve(uint64_t pages) { std::ofstream(kReserved) << pages; }

}  // namespace

HugePageReserve::HugePageReserve(uint64_t wanted_bytes) : wanted_(ceil_div(wanted_bytes, 2 * kMiB)) {
  const SystemFiles files;
  const uint64_t free = files.read_number(kFree).value_or(0);
  if (free < wanted_) {
    const uint64_t before = files.read_number(kReserved).value_or(0);
    reserve(before + wanted_ - free);
    added_pages_ = std::max(before, files.read_number(kReserved).value_or(0)) - before;
  }
  enough_ = files.read_number(kFree).value_or(0) >= wanted_;
}

HugePageReserve::~HugePageReserve() {
  // Others may have reserved more since.
  const uint64_t now = SystemFiles().read_number(kReserved).value_or(0);
  if (added_pages_ > 0) reserve(now - std::min(now, added_pages_));
}

}  // namespace penstock::tools
