#include "tools/doctor/copy_rates.h"

#include <algorithm>
#include <chrono>

#include "aio/host_arena.h"

namespace penstock::tools {
namespace {

Result<double> timed_gbps(Device& device, Lease source, Lease target) {
  const auto bytes = static_cast<double>(source.size_bytes());
  const auto begin = std::chrono::steady_clock::now();
  PENSTOCK_TRY(std::move(device.copy(std::move(source), std::move(target)).transfer).wait().status());
  return bytes / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / 1e9;
}

}  // namespace

Result<CopyRates> measure_copies(Device& device, uint64_t copy_bytes, int rounds) {
  PENSTOCK_TRY_ASSIGN(arena, aio::HostArena::make(copy_bytes));
  const std::span<std::byte> here = arena->bytes().first(copy_bytes), there = device.memory().first(copy_bytes);
  device.register_host_memory(arena->bytes(), {});
  CopyRates best;
  for (int round = 0; round < rounds; ++round) {
    PENSTOCK_TRY_ASSIGN(up, timed_gbps(device, Lease::over(Tier::host, here), Lease::over(Tier::device, there)));
    PENSTOCK_TRY_ASSIGN(down, timed_gbps(device, Lease::over(Tier::device, there), Lease::over(Tier::host, here)));
    best.host_to_device_gbps = std::max(best.host_to_device_gbps, up);
    best.device_to_host_gbps = std::max(best.device_to_host_gbps, down);
  }
  return best;
}

}  // namespace penstock::tools
