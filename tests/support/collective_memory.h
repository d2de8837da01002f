// CollectiveMemory is the memory of a collective as the host sees it: that itself, or, where it is a device's, a copy
// that is given to it before an operation and taken from it afterwards.
#pragma once

#include <optional>

#include "gpu/cuda_device.h"
#include "tiering/collective.h"

namespace penstock::test {

class CollectiveMemory {
 public:
  // `device`: the index of the collective's.
  static Result<std::unique_ptr<CollectiveMemory>> open(Collective& of, std::optional<int> device) {
    auto made = std::unique_ptr<CollectiveMemory>(new CollectiveMemory(of));
    if (of.tier() != Tier::device) return made;
    PENSTOCK_TRY_ASSIGN(opened, gpu::open_cuda_device({.index = device.value(), .arena_bytes = kAlignmentBytes}));
    made->device_ = std::move(opened);
    made->copy_ = Buffer::on_heap(of.memory().size());
    return made;
  }

  bool is_copy() const { return device_ != nullptr; }
  std::span<std::byte> bytes() const { return is_copy() ? copy_.bytes() : of_.memory(); }
  Status give() const { return is_copy() ? carry(Tier::host, copy_.bytes(), Tier::device, of_.memory()) : Status(); }
  Status take() const { return is_copy() ? carry(Tier::device, of_.memory(), Tier::host, copy_.bytes()) : Status(); }

 private:
  explicit CollectiveMemory(Collective& of) : of_(of) {}
  Status carry(Tier from, std::span<std::byte> source, Tier to, std::span<std::byte> target) const {
    return std::move(device_->copy(Lease::over(from, source), Lease::over(to, target)).transfer).wait().status();
  }

  Collective& of_;
  std::unique_ptr<Device> device_;
  Buffer copy_;
};

}  // namespace penstock::test
