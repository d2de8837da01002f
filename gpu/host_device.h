// The host device implements Device in host memory: for machines without a GPU, and for tests of plans, overlap and
// memory shortage on any machine.
#pragma once

#include <memory>

#include "tiering/device.h"

namespace penstock::gpu {

struct HostDeviceOptions {
  uint64_t arena_bytes = 0;
  // A copy takes at least as long as over a link of this rate; 0: as fast as memory.
  uint64_t host_to_device_bytes_per_s = 0;
  uint64_t device_to_host_bytes_per_s = 0;
};

Result<std::unique_ptr<Device>> open_host_device(const HostDeviceOptions& options);

}  // namespace penstock::gpu
