// Opens the CUDA device, or explains why this machine has none.
#pragma once

#include <memory>
#include <string>

#include "gpu/backend.h"
#include "tiering/device.h"

namespace penstock::gpu {

struct CudaDeviceOptions {
  int index = 0;  // among the devices that the driver lists (see CUDA_VISIBLE_DEVICES)
  uint64_t arena_bytes = 0;
};

// Refused in a build without CUDA.
Result<std::unique_ptr<Device>> open_cuda_device(const CudaDeviceOptions& options);

// Its primitives alone, for who has streams and memory of a device besides those of a Device.
Result<std::unique_ptr<Backend>> open_cuda_backend(int index);

// What is known about CUDA on this machine before a device is opened. Versions as CUDA encodes them: 12040 is 12.4.
struct CudaFindings {
  int built_for = 0;       // the runtime in this build; 0: built without CUDA
  int driver_version = 0;  // the newest CUDA version that the driver supports; 0: no driver
  int devices = 0;
  std::string error = {};  // the runtime's error message, if any
};

CudaFindings find_cuda();

// What tells GPUs apart, whatever numbers a process knows them by: two ranks may both have number 0, and mean two.
Result<std::string> cuda_identity(int index);

// Ok if device `index` can be opened. Otherwise says what was found and what the user can do.
Status usable(const CudaFindings& findings, int index);

// The oldest compute capability that the kernels are built for, encoded as in DeviceFacts.
constexpr uint32_t kOldestCapability = 80;
Status usable(const DeviceFacts& facts);

// What matters about a device besides its rates, in one sentence each. Empty for an ordinary server GPU.
std::string peculiarities(const DeviceFacts& facts);

}  // namespace penstock::gpu
