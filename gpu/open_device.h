// open_device() chooses between the CUDA device and the host device. Nothing else does.
#pragma once

#include <memory>
#include <string>

#include "gpu/cuda_device.h"
#include "gpu/host_device.h"

namespace penstock::gpu {

enum class DeviceChoice { automatic, cuda, host };

struct DeviceOptions {
  DeviceChoice choice = DeviceChoice::automatic;
  CudaDeviceOptions cuda = {};
  HostDeviceOptions host = {};
};

struct OpenedDevice {
  std::unique_ptr<Device> device;
  // Why this device was chosen, for the user: "CUDA device: no driver: ...; the host device runs instead".
  std::string explanation;
};

// `automatic` takes CUDA if it is usable and otherwise the host. If a usable CUDA device cannot be opened (its memory
// is taken, say), that is refused, because the user did not mean the host. An explicit choice that is impossible is
// refused.
Result<OpenedDevice> open_device(const DeviceOptions& options);

}  // namespace penstock::gpu
