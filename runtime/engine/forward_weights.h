// ForwardWeights brings the weights of one use after another for passes that change nothing: evaluation, generation. It
// works between steps, in the places that the plan gives the same units in a step's forward, and fetches the next use's
// weights while one computes, where their places do not overlap.
//
// Decision thread only. REQUIRES: the executor is idle for as long as it lives.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "runtime/engine/host_memory.h"
#include "runtime/engine/moved.h"
#include "runtime/engine/weight_fetch.h"
#include "tiering/plan/plan.h"

namespace penstock::engine {

class ForwardWeights {
 public:
  ForwardWeights(const Plan& plan, HostMemory& memory, aio::TileStore& store, IoEngine& io);
  // Waits for what is under way.
  ~ForwardWeights();

  // Begins to fetch the use's weights, unless they are there, or under way, or have no room yet.
  void want(uint32_t use);
  // Whether they are there, or their fetch has failed.
  bool is_settled(uint32_t use) const;
  // By the use's units. It stays in its place until release(). REQUIRES: is_settled(use), and no other use is held. A
  // failure is that of its fetch, and the next want() tries again.
  Result<std::vector<std::span<std::byte>>> hold(uint32_t use);
  void release();

  Moved moved() const { return moved_; }

 private:
  struct Place {
    uint32_t unit = 0;
    uint64_t offset_bytes = 0, length_bytes = 0;
  };
  struct UsePlaces {
    std::vector<uint32_t> units;
    std::vector<Place> places;  // of those that do not rest in host memory
  };
  struct Fetched {
    size_t left = 0;
    Status status;
  };

  static bool overlap(const UsePlaces& one, const UsePlaces& other);
  // Whether its places are free; gives up those of uses that are neither held nor under way.
  bool make_room(uint32_t use);
  void fetch(uint32_t use);

  const Plan& plan_;
  HostMemory& memory_;
  aio::TileStore& store_;
  IoEngine& io_;
  std::vector<UsePlaces> uses_;
  std::map<uint32_t, Fetched> fetched_;  // under way, or there
  std::optional<uint32_t> held_;
  std::vector<Lease> leases_;  // of the use that is held
  uint64_t deadline_ = 0;
  Moved moved_;
};

}  // namespace penstock::engine
