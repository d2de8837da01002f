// DeviceMemory is a device and its arena, cut as the plan lays it out: units under way, sums of gradients, activations,
// and the units that rest there with their states and gradients.
//
// A place is lent from the move that fills it to its release, and to the copies from and to it until they have ended.
// What follows on streams has it before that, behind their events: see pass_on(). What rests there has its place alone.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/host_memory.h"
#include "tiering/buffer.h"
#include "tiering/device.h"
#include "tiering/plan/plan_run.h"

namespace penstock::engine {

// Opens a device with an arena of so many bytes. Called on the decision thread.
using MakeDevice = std::function<Result<std::unique_ptr<Device>>(uint64_t arena_bytes)>;

// A sum of gradients that was downloaded from a device; it stays in its place until its move is ended.
struct DownloadedSum {
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
  Lease lend_place(const Move& move) { return lend(place_of(move)); }
  // To one who writes there, or to several who only read. REQUIRES: the bytes are of the arena.
  Lease lend(std::span<std::byte> bytes);
  Lease share(std::span<std::byte> bytes);
  void pass_on(Lease place) { arena_.pass_on(std::move(place)); }
  // Of forward passes within steps.
  std::span<std::byte> forward_units() const;

  // What rests there. REQUIRES: the plan has it rest there.
  std::span<std::byte> weights_of(uint32_t unit) const;
  std::span<std::byte> weight_of(TileId tile) const;
  std::span<std::byte> state_of(TileId tile) const;
  // Of a trained unit, in the form's gradient dtype, and its sums of squares by block.
  std::span<std::byte> gradient_of(uint32_t unit) const;
  std::span<std::byte> squares_of(uint32_t unit) const;
  bool holds_weight(TileId tile) const { return plan_.placements[tile].weight_on_device(); }
  bool holds_state(TileId tile) const { return plan_.placements[tile].state_on_device(); }
  // For a copy by runs_of(). REQUIRES: whoever copies has leases on what the runs touch.
  Lease lend_all() { return resting_.lend(); }
  // The runs of a copy between the arena, whole, and a place for the whole tile in host memory: its weight, and behind
  // that its state where that rests here too.
  enum class Way { in, out };
  std::vector<CopyRun> runs_of(TileId tile, Way way) const;
  // Blocks until they have been copied. REQUIRES: nothing that touches the tile is under way.
  Status carry(TileId tile, Way way, std::span<std::byte> bytes);

  // The plan has become another: whatever rested there is at other places. REQUIRES: its arena fits this one.
  void lay_out();
  std::string description() const;

 private:
  DeviceMemory(const Plan& plan, std::unique_ptr<Device> device)
      : plan_(plan),
        arena_(Tier::device, "the device's arena", device->memory()),
        resting_(Buffer::borrowed(Tier::device, device->memory())),
        device_(std::move(device)) {
    lay_out();
  }
  std::span<std::byte> part_of(Region region, const char* name, uint64_t offset_bytes, uint64_t bytes) const;
  std::span<std::byte> resting(Region region, uint64_t offset_bytes, uint64_t bytes) const;

  const Plan& plan_;
  // The same memory, of which some is passed from move to move and some rests. Both outlive the copies that the device
  // ends.
  BufferArea arena_;
  Buffer resting_;
  const std::unique_ptr<Device> device_;
  std::string registration_;  // what was refused of it
  // In their regions, of what rests there: by tile, and by unit.
  std::vector<uint64_t> weight_offsets_, state_offsets_, gradient_offsets_;
};

}  // namespace penstock::engine
