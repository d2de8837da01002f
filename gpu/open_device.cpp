#include "gpu/open_device.h"

#include <utility>

namespace penstock::gpu {
namespace {

Result<OpenedDevice> open_host(const HostDeviceOptions& options, std::string explanation) {
  PENSTOCK_TRY_ASSIGN(device, open_host_device(options));
  return OpenedDevice{std::move(device), std::move(explanation)};
}

}  // namespace

Result<OpenedDevice> open_device(const DeviceOptions& options) {
  if (options.choice == DeviceChoice::host) return open_host(options.host, "the host device, as chosen");
  Status cuda = usable(find_cuda(), options.cuda.index);
  if (!cuda.ok() && options.choice == DeviceChoice::automatic) {
    return open_host(options.host, cuda.message() + "; the host device runs instead");
  }
  PENSTOCK_TRY_ASSIGN(device, open_cuda_device(options.cuda));
  std::string explanation = device->description();
  if (std::string more = peculiarities(device->facts()); !more.empty()) explanation += ". " + more;
  return OpenedDevice{std::move(device), std::move(explanation)};
}

}  // namespace penstock::gpu
