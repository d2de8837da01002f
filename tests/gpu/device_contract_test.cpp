// The contract of Device over every device there is: the host's, plain and throttled; the code that runs above CUDA,
// with host memory that copy engines reach nowhere or in windows only; and CUDA's own, where there is one.
#include "tests/contracts/device_contract.h"

#include "gpu/streamed_device.h"
#include "tests/gpu/device_cases.h"
#include "tests/gpu/refusing_backend.h"

namespace penstock {
namespace {

using gpu::open_host_device;

Result<std::unique_ptr<Device>> open_throttled(uint64_t arena_bytes) {
  return open_host_device({.arena_bytes = arena_bytes,
                           .host_to_device_bytes_per_s = 2'000'000'000,
                           .device_to_host_bytes_per_s = 1'000'000'000});
}

Result<std::unique_ptr<Device>> open_registering(uint64_t arena_bytes, uint64_t at_most_bytes) {
  auto refusals = std::make_shared<gpu::RefusingBackend::Refusals>();
  refusals->register_at_most_bytes = at_most_bytes;
  return gpu::StreamedDevice::open(std::make_unique<gpu::RefusingBackend>(std::move(refusals)), arena_bytes);
}
Result<std::unique_ptr<Device>> open_staged(uint64_t arena_bytes) { return open_registering(arena_bytes, 0); }
Result<std::unique_ptr<Device>> open_windows(uint64_t arena_bytes) { return open_registering(arena_bytes, kMiB); }

INSTANTIATE_TEST_SUITE_P(HostDevice, DeviceContract,
                         testing::Values(host_case(), DeviceCase{"throttled", open_throttled}), device_case_name);
INSTANTIATE_TEST_SUITE_P(StreamedDevice, DeviceContract,
                         testing::Values(DeviceCase{"staged", open_staged}, DeviceCase{"windows", open_windows}),
                         device_case_name);
INSTANTIATE_TEST_SUITE_P(CudaDevice, DeviceContract, testing::Values(cuda_case()), device_case_name);

}  // namespace
}  // namespace penstock
