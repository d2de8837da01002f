#include "gpu/host_device.h"

#include <utility>

#include "gpu/host_backend.h"
#include "gpu/streamed_device.h"

namespace penstock::gpu {

Result<std::unique_ptr<Device>> open_host_device(const HostDeviceOptions& options) {
  return StreamedDevice::open(std::make_unique<HostBackend>(options), options.arena_bytes);
}

}  // namespace penstock::gpu
