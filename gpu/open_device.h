// Which device runs: the one place where CUDA and host are chosen between.
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
  // Why it is this one, for people: "CUDA device: no driver: ...; the host device runs instead".
  std::string explanation;
};

// automatic: CUDA where it can be used, else the host. A CUDA device that is there and refuses (its memory is taken,
// say) is a refusal, since the host would not be what the user meant. A forced choice that is impossible is one too.
Result<OpenedDevice> open_device(const DeviceOptions& options);

}  // namespace penstock::gpu
