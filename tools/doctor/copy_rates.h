// How fast a device's copy engines move bytes between host memory and its own.
#pragma once

#include <cstdint>

#include "tiering/device.h"

namespace penstock::tools {

struct CopyRates {
  double host_to_device_gbps = 0;
  double device_to_host_gbps = 0;
};

// Each way alone, in copies of `copy_bytes` from and to host memory that the device may reach directly; the best of
// `rounds`, since whatever else the machine does can only slow a copy down. REQUIRES: the device's memory holds a copy.
Result<CopyRates> measure_copies(Device& device, uint64_t copy_bytes, int rounds);

}  // namespace penstock::tools
