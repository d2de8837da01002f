#include "runtime/engine/device_memory.h"

#include <utility>

namespace penstock::engine {

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::open(const MakeDevice& make, const Plan& plan,
                                                         const HostMemory& host) {
  PENSTOCK_TRY_ASSIGN(device, make(arena_bytes(plan.budget_lines, Tier::device)));
  auto memory = std::unique_ptr<DeviceMemory>(new DeviceMemory(plan, std::move(device)));
  memory->registration_ = memory->device_->register_host_memory(host.bytes(), host.copied()).explanation;
  return memory;
}

std::span<std::byte> DeviceMemory::at(Area area, uint64_t offset_bytes, uint64_t bytes) const {
  const bool is_there = area == Area::device_units || area == Area::device_gradients || area == Area::activations;
  CHECK(is_there, name_of(area), " is not of the device's arena");
  const Region region = area == Area::device_units       ? Region::device_units
                        : area == Area::device_gradients ? Region::device_gradients
                                                         : Region::device_activations;
  const MemoryRun run = run_of(plan_.budget_lines, region);
  CHECK(offset_bytes <= run.bytes && bytes <= run.bytes - offset_bytes, bytes, " B from ", offset_bytes, " of ",
        name_of(area), ", which has ", run.bytes);
  return device_->memory().subspan(run.offset_bytes + offset_bytes, bytes);
}

std::span<std::byte> DeviceMemory::forward_units() const {
  const MemoryRun run = run_of(plan_.budget_lines, Region::device_forward_units);
  return device_->memory().subspan(run.offset_bytes, run.bytes);
}

std::string DeviceMemory::description() const {
  return registration_.empty() ? device_->description() : device_->description() + "; " + registration_;
}

}  // namespace penstock::engine
