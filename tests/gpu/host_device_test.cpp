#include "gpu/host_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using gpu::HostDeviceOptions;
using gpu::open_host_device;

Result<std::unique_ptr<Device>> open_plain(uint64_t arena_bytes) {
  return open_host_device({.arena_bytes = arena_bytes});
}

double seconds_for(Device& device, std::vector<std::pair<Lease, Lease>> copies) {
  auto start = std::chrono::steady_clock::now();
  std::vector<Transfer> transfers;
  for (auto& [source, target] : copies) {
    transfers.push_back(device.copy(std::move(source), std::move(target)).transfer);
  }
  for (Transfer& transfer : transfers) EXPECT_TRUE(std::move(transfer).wait().ok());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Upper bounds are loose, since the machine may be busy; the lower ones are promises.
TEST(HostDevice, KeepsToTheBandwidthItWasGivenInEachDirection) {
  constexpr uint64_t kBytes = 20'000'000;
  std::unique_ptr<Device> device = open_host_device({.arena_bytes = 2 * kBytes,
                                                     .host_to_device_bytes_per_s = 200'000'000,
                                                     .device_to_host_bytes_per_s = 100'000'000})
                                       .value();
  std::vector<std::byte> a(kBytes), b(kBytes);
  auto host_lease = [](std::vector<std::byte>& bytes) { return Lease::over(Tier::host, bytes); };
  auto device_lease = [&](uint64_t offset) {
    return Lease::over(Tier::device, device->memory().subspan(offset, kBytes));
  };
  std::vector<std::pair<Lease, Lease>> in, out;
  in.emplace_back(host_lease(a), device_lease(0));
  out.emplace_back(device_lease(kBytes), host_lease(b));
  EXPECT_GE(seconds_for(*device, std::move(in)), 0.1);
  double out_s = seconds_for(*device, std::move(out));
  EXPECT_GE(out_s, 0.2);
  EXPECT_LE(out_s, 2.0);
  // Both at once take as long as the slower, not as their sum: at least once, if the machine has other work.
  double both_s = 1;
  for (int attempt = 0; attempt < 10 && both_s >= 0.29; ++attempt) {
    std::vector<std::pair<Lease, Lease>> both;
    both.emplace_back(host_lease(a), device_lease(0));
    both.emplace_back(device_lease(kBytes), host_lease(b));
    both_s = std::min(both_s, seconds_for(*device, std::move(both)));
  }
  EXPECT_GE(both_s, 0.2);
  EXPECT_LT(both_s, 0.29);
  EXPECT_GE(device->facts().copy_engines, 2u) << "which says so";
  EXPECT_EQ(device->facts().host_to_device_bytes_per_s, 200'000'000u);
}

TEST(HostDevice, ReturnsToItsCallerBeforeAThrottledCopyIsDone) {
  std::unique_ptr<Device> device =
      open_host_device({.arena_bytes = kMiB, .host_to_device_bytes_per_s = 4 * kMiB}).value();
  std::vector<std::byte> in(kMiB);
  auto start = std::chrono::steady_clock::now();
  Copy copy = device->copy(Lease::over(Tier::host, in), Lease::over(Tier::device, device->memory()));
  double issued_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LT(issued_s, 0.2);
  EXPECT_FALSE(copy.transfer.ended());
  EXPECT_TRUE(std::move(copy.transfer).wait().ok());
  EXPECT_GE(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 0.25);
}

TEST(HostDeviceDeathTest, RefusesCopiesThatTheDeviceHasNoPartIn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // its streams are threads
  std::unique_ptr<Device> device = open_plain(4096).value();
  std::vector<std::byte> a(16), b(16);
  EXPECT_DEATH(device->copy(Lease::over(Tier::host, a), Lease::over(Tier::host, b)), "a device copy from host to host");
}

TEST(HostDeviceDeathTest, RefusesRunsThatLeaveTheirLeases) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // its streams are threads
  std::unique_ptr<Device> device = open_plain(4096).value();
  std::vector<std::byte> in(16);
  CopyRun run{8, 0, 9};
  EXPECT_DEATH(device->copy({&run, 1}, Lease::over(Tier::host, in), Lease::over(Tier::device, device->memory()), {}),
               "a run of 9 B at 8 of 16 B");
}

}  // namespace
}  // namespace penstock
