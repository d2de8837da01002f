// DeviceMemory is a device and its arena, cut as the plan lays it out: units under way, sums of gradients, and
// activations.
//
// Nobody leases places there: whoever fills or reads one is ordered by the events of those before it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/engine/host_memory.h"
#include "tiering/device.h"
#include "tiering/plan/plan_run.h"

namespace penstock::engine {

// Opens a device with an arena of so many bytes. Called on the decision thread.
using MakeDevice = std::function<Result<std::unique_ptr<Device>>(uint64_t arena_bytes)>;

// A sum of gradients that a device has lowered; it stays in its place until its move is ended.
struct LoweredSum {
  PlanRun::Ticket ticket;
  std::span<const std::byte> values;
};

class DeviceMemory {
 public:
  // `plan` and `host` outlive it.
  static Result<std::unique_ptr<DeviceMemory>> open(const MakeDevice& make, const Plan& plan, const HostMemory& host);

  Device& device() { return *device_; }
  // REQUIRES: the area is of the device's arena.
  std::span<std::byte> at(Area area, uint64_t offset_bytes, uint64_t bytes) const;
  std::span<std::byte> place_of(const Move& move) const {
    return at(move.area, move.place_offset_bytes, move.place_bytes);
  }
  // Of forward passes within steps.
  std::span<std::byte> forward_units() const;
  std::string description() const;

 private:
  DeviceMemory(const Plan& plan, std::unique_ptr<Device> device) : plan_(plan), device_(std::move(device)) {}

  const Plan& plan_;
  const std::unique_ptr<Device> device_;
  std::string registration_;  // what was refused of it
};

}  // namespace penstock::engine
