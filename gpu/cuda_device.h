// The CUDA device, and what is said where there can be none.
#pragma once

#include <memory>
#include <string>

#include "tiering/device.h"

namespace penstock::gpu {

struct CudaDeviceOptions {
  int index = 0;  // among the devices that the driver shows (CUDA_VISIBLE_DEVICES)
  uint64_t arena_bytes = 0;
};

// A build without CUDA refuses here.
Result<std::unique_ptr<Device>> open_cuda_device(const CudaDeviceOptions& options);

// What was found out about CUDA on this machine before any device is opened. Versions as CUDA counts: 12040 is 12.4.
struct CudaFindings {
  int built_for = 0;       // the runtime in this build; 0: built without CUDA
  int driver_version = 0;  // the newest that the driver can serve; 0: no driver
  int devices = 0;
  std::string error = {};  // the runtime's own words, where it had any
};

CudaFindings find_cuda();

// Ok where device `index` can be opened; else what was found, and what the user can do.
Status usable(const CudaFindings& findings, int index);

// The oldest architecture that kernels are built for, as DeviceFacts counts.
constexpr uint32_t kOldestCapability = 80;
Status usable(const DeviceFacts& facts);

// What the planner must know about a device beyond its rates, one sentence each; empty for a plain server GPU.
std::string peculiarities(const DeviceFacts& facts);

}  // namespace penstock::gpu
