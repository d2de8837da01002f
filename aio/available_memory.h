// AvailableMemory says how much host memory this process may still take, and what limits it.
#pragma once

#include <cstdint>
#include <string>

namespace penstock::aio {

struct AvailableMemory {
  uint64_t bytes = 0;
  std::string limited_by;  // "memory of the machine" or the control group's path

  // The smallest of what the machine has free and what each control group above this process allows (versions 1 and 2).
  // Tests pass another root.
  static AvailableMemory now(const std::string& root = {});
  // The same if nobody else took any.
  static AvailableMemory at_most(const std::string& root = {});
};

// Bytes in free explicit huge pages of 2 MiB. AvailableMemory does not count them. Tests pass another root.
uint64_t free_huge_page_bytes(const std::string& root = {});

}  // namespace penstock::aio
