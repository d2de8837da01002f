// HugePageReserve makes sure that enough explicit 2 MiB pages are free, and releases afterwards what it reserved.
#pragma once

#include <cstdint>

namespace penstock::tools {

class HugePageReserve {
 public:
  // Only root can reserve; without, the pages that are free already may still be enough.
  explicit HugePageReserve(uint64_t wanted_bytes);
  ~HugePageReserve();
  HugePageReserve(const HugePageReserve&) = delete;
  HugePageReserve& operator=(const HugePageReserve&) = delete;

  bool enough() const { return enough_; }
  uint64_t wanted_pages() const { return wanted_; }

 private:
  const uint64_t wanted_;
  uint64_t added_pages_ = 0;
  bool enough_ = false;
};

}  // namespace penstock::tools
