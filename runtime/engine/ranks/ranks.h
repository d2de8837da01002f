// Ranks: the processes that train one model together, seen from one of them.
//
// They have two collectives, since what a step's passes move and what makes a step durable come in no common order:
// each is an order of its own. Where they have devices, there is a third among those.
//
// A rank tells the others of what ends it by fail(), or says nothing and dies; both end all operations of all ranks
// within a deadline. Destroying it is leaving in good order: an operation that still waits for it ends with a refusal.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/engine/ranks/rank_place.h"
#include "tiering/collective.h"

namespace penstock::engine {

struct RanksOptions {
  RankPlace place;
  uint64_t memory_bytes = 0;  // of the collective for passes, this rank's
  // The rank's device, by its index, and what the collective among devices has there, which NCCL moves. All ranks have
  // one, or none has.
  std::optional<int> device = {};
  uint64_t device_memory_bytes = 0;
  // Besides, on the device, or at most so much where hosts speak with one another: what the others give to a sum passes
  // through. Where nothing is added up on the device it may be 0.
  uint64_t staging_bytes = 64 * kMiB;
  // How long the ranks wait for one another at the start.
  std::chrono::milliseconds meets_within{std::chrono::minutes(5)};
  // Asked ten times a second while they do, if it is there: whether this one waits no longer.
  std::function<bool()> gives_up = {};
  // A process that shows no sign of life for so long hangs, or was stopped.
  std::chrono::milliseconds silent_at_most{std::chrono::seconds(20)};
  // A trainer that computes for so long without a verb is taken for one that hangs; unless passes take long: it may be
  // away for 3 times as long as any trainer was so far, and for 10 times as long as a pass is expected to take.
  std::chrono::milliseconds hangs_after{std::chrono::seconds(20)};
  // Within a verb of a step the same goes for an engine in which nothing ends: no transfer, no update, no message,
  // while it does not wait for other ranks itself. Otherwise a rank may be in a verb for so long, since drives may be
  // slow and stores large; and it is the most that a trainer may ever be away.
  std::chrono::milliseconds late_at_most{std::chrono::minutes(10)};
};

class Ranks {
 public:
  virtual ~Ranks() = default;

  virtual uint32_t rank() const = 0;
  virtual uint32_t ranks() const = 0;
  // "rank 3", or among several hosts "rank 3 on node1".
  virtual std::string name_of(uint32_t rank) const = 0;
  // In host memory.
  virtual Collective& passes() = 0;
  // Without memory: for barriers and exchanges.
  virtual Collective& commits() = 0;
  // In the memory of each rank's device; none where they have no devices.
  virtual Collective* among_devices() = 0;

  // What a refusal names.
  virtual void at_step(uint64_t step) = 0;
  // This rank's trainer, by its own thread: it has come to the engine, or goes off to compute.
  virtual void came() = 0;
  virtual void went() = 0;
  // Between these two a verb's progress is told, by any thread: something has ended that it may wait for.
  virtual void step_began() = 0;
  virtual void step_ended() = 0;
  virtual void progressed() = 0;
  // What the longest pass is expected to take.
  virtual void expect_pass(double seconds) = 0;
  // This rank cannot go on. The first that says so is named to all.
  virtual void fail(const Status& why) = 0;
  // The failure of any rank.
  virtual Status status() const = 0;
};

// Waits until all ranks have come. One rank needs no other process; several share memory of this host.
Result<std::unique_ptr<Ranks>> meet(const RanksOptions& options);

// Runs one operation and waits for its end: wait_for_end([&](Collective::Then then) { ranks.commits().barrier(status,
// then); }).
Status wait_for_end(const std::function<void(Collective::Then)>& begin);

}  // namespace penstock::engine
