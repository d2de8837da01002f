// ForwardWeights brings the weights of one use after another for passes that change nothing: evaluation, generation.
// Between steps it works in the places that the plan gives the same units in a step's forward, and fetches the next
// use's weights while one computes, where their places do not overlap. Within a step it has a room of its own, for one
// use. Weights that rest in codes are dequantised when they have arrived.
//
// Decision thread only. REQUIRES: the executor is idle for as long as it lives; or, within a step, it updates no
// weights but those of the step before.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cpu_optim/update_workers.h"
#include "runtime/engine/device_memory.h"
#include "runtime/engine/drive_bytes.h"
#include "runtime/engine/host_memory.h"
#include "runtime/engine/join.h"
#include "runtime/engine/mailbox.h"
#include "runtime/engine/weight_fetch.h"
#include "tiering/plan/plan.h"

namespace penstock::engine {

class ForwardWeights {
 public:
  enum class Room : uint8_t { of_the_pass, own };
  struct Parts {
    Room room;
    const Workload& workload;
    const Plan& plan;
    HostMemory& memory;
    DeviceMemory* device;  // where the plan computes, if that has memory of its own
    aio::TileStore& store;
    IoEngine& io;
    cpu_optim::UpdateWorkers& workers;
    Mailbox& mailbox;  // woken when the workers have something done
    // Of a unit: whether the step before has updated its weights.
    std::function<bool(uint32_t unit)> is_current = [](uint32_t) { return true; };
  };
  explicit ForwardWeights(Parts parts);
  // Waits for what is under way, and for the events that release() was given.
  ~ForwardWeights();

  // Begins to fetch the use's weights, unless they are there, or under way, or have no room yet.
  void want(uint32_t use);
  // Whether they are there, or their fetch has failed.
  bool is_settled(uint32_t use) const;
  // By the use's units. It stays in its place until release(). REQUIRES: is_settled(use), and no other use is held. A
  // failure is that of its fetch, and the next want() tries again.
  Result<std::vector<std::span<std::byte>>> hold(uint32_t use);
  // A device reads them until `done`.
  void release(Event done);

  DriveBytes drive_bytes() const { return drive_bytes_; }

 private:
  // None: its weights rest where they are used, in host memory or on the device.
  struct UnitPlaces {
    uint32_t unit = 0;
    std::optional<MemoryRun> host;         // weights that come from the drives
    std::optional<MemoryRun> device;       // that were uploaded
    std::optional<MemoryRun> dequantised;  // on the device, or in host memory where there is none
  };
  using UsePlaces = std::vector<UnitPlaces>;
  // Weights that are being dequantised by kernels on the device's own stream.
  struct Dequantising {
    std::shared_ptr<Join> join;
    Event done = {};
  };
  // What follows on what workers have done. Not the mailbox, which has other things for this thread besides: whoever
  // waits here until nothing is under way does these alone.
  struct Done {
    std::mutex mutex;
    std::vector<std::function<void()>> waiting;  // GUARDED_BY(mutex)
    bool is_over = false;                        // whoever it was for has ended, or is about to: decision thread
  };

  UnitPlaces places_of(const Compute::Weights& weights) const;
  UsePlaces own_places_of(const Use& use) const;
  BufferArea& units() const;
  static bool overlap(const std::optional<MemoryRun>& one, const std::optional<MemoryRun>& other);
  bool overlap(const UnitPlaces& one, const UnitPlaces& other) const;
  bool overlap(const UsePlaces& one, const UsePlaces& other) const;
  // Whether its places are free; gives up those of uses that are neither held nor under way.
  bool make_room(uint32_t use);
  void bring(uint32_t use, const UnitPlaces& places, const std::shared_ptr<Join>& join);
  void upload(uint32_t use, const UnitPlaces& places, const std::shared_ptr<Join>& join);
  void dequantise(const UnitPlaces& places, const std::shared_ptr<Join>& join);
  void dequantise_on_device(uint32_t use, const UnitPlaces& places, const std::shared_ptr<Join>& join);
  // Of what the device still reads, that which lies in the use's places.
  std::vector<Event> readers_of(uint32_t use) const;
  // From a worker.
  Post poster();
  // Goes on with what workers and the device have done.
  void go_on();
  // The weights as they rest, in host memory, to read.
  Lease share_at_rest(const UnitPlaces& places) const;
  std::span<std::byte> on_device(const MemoryRun& run) const;
  bool is_under_way() const;

  const Parts parts_;
  std::vector<UsePlaces> uses_;
  std::map<uint32_t, std::optional<Status>> fetched_;  // by use: how it has ended; none while it is under way
  std::map<uint32_t, std::vector<Lease>> on_device_;   // by use: its places there
  std::optional<uint32_t> held_;
  std::vector<Lease> leases_;             // of the use that is held
  std::map<uint32_t, Event> read_until_;  // by use: the device may still read its places
  std::vector<Dequantising> dequantising_;
  const std::shared_ptr<Done> done_ = std::make_shared<Done>();
  uint64_t deadline_ = 0;
  DriveBytes drive_bytes_;
};

}  // namespace penstock::engine
