// Carrier moves the bytes of one rank's gathers, reductions and collections. What it is called for, all ranks have come
// to and agree on; how they wait for one another and end one another is the collective's.
//
// Used by the collective's thread; made and destroyed by the thread that makes the collective.
#pragma once

#include <span>

#include "tiering/collective.h"
#include "tiering/status.h"

namespace penstock::engine {

class Carrier {
 public:
  virtual ~Carrier() = default;

  // Collective::memory(), and where it lies.
  virtual std::span<std::byte> memory() const = 0;
  virtual Tier tier() const = 0;

  // As of Collective. Return when this rank has what it takes; others may still be reading from it. What is refused
  // ends all ranks, so that a carrier that waits for others looks whether they have ended.
  virtual Status gather(std::span<const Collective::Shard> shards) = 0;
  virtual Status reduce(const Collective::Reduction& reduction) = 0;
  virtual Status collect(const Collective::Collection& collection) = 0;
};

}  // namespace penstock::engine
