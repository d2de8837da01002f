// AvailableMemory: what this process may still take from the host, and who says so.
#pragma once

#include <cstdint>
#include <string>

namespace penstock::aio {

struct AvailableMemory {
  uint64_t bytes = 0;
  std::string limited_by;  // "memory of the machine" or the control group's path

  // The least of what the machine has free and what every control group above us allows (versions 1 and 2). Tests give
  // another root.
  static AvailableMemory now(const std::string& root = {});
};

// Free explicit huge pages of 2 MiB; they are not among the available bytes.
uint64_t free_huge_page_bytes();

}  // namespace penstock::aio
