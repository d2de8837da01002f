// HostCollective: among processes that share memory, by which they agree on operations, wait for one another and end
// one another. A Carrier moves the bytes of gathers, reductions and collections.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/engine/ranks/carrier.h"
#include "runtime/engine/ranks/ranks.h"
#include "runtime/engine/ranks/shared_memory.h"
#include "tiering/collective.h"

namespace penstock::engine {

class HostCollective final : public Collective {
 public:
  // `memory` outlives it. Without a carrier: for barriers and exchanges.
  static Result<std::unique_ptr<HostCollective>> make(const SharedMemory& memory, uint32_t channel, uint32_t rank,
                                                      std::unique_ptr<Carrier> carrier, const RanksOptions& options);
  ~HostCollective() override;

  uint32_t rank() const override { return rank_; }
  uint32_t ranks() const override { return memory_.ranks(); }
  std::span<std::byte> memory() const override {
    return carrier_ != nullptr ? carrier_->memory() : std::span<std::byte>();
  }
  Tier tier() const override { return carrier_ != nullptr ? carrier_->tier() : Tier::host; }
  void gather(std::span<const Shard> shards, Then then) override;
  void reduce(const Reduction& reduction, Then then) override;
  void collect(const Collection& collection, Then then) override;
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all, Then then) override;
  void barrier(const Status& mine, Then then) override;

 private:
  HostCollective(const SharedMemory& memory, uint32_t channel, uint32_t rank, std::unique_ptr<Carrier> carrier,
                 const RanksOptions& options)
      : memory_(memory),
        channel_(channel),
        rank_(rank),
        carrier_(std::move(carrier)),
        hangs_after_(options.hangs_after),
        late_at_most_(options.late_at_most) {}

  struct Operation {
    std::string name;  // for messages
    Word word;         // its digest, and what small ones give
    Then then;
    std::function<Status(uint64_t number)> work = {};  // when all have come
    bool is_carried = false;                           // others may read this rank's memory until they have done so
  };
  // `digest`: of what all ranks must say alike.
  static Operation make_operation(std::string name, uint64_t digest, Then then);
  void begin(Operation operation);
  void run();
  Status carry_out(const Operation& operation);
  using Counter = std::atomic<uint64_t> ChannelOfRank::*;
  // What the carrier refuses this rank, no rank can go on from.
  Status end_all(const Operation& operation, const Status& why) const;
  // Until every rank's counter is at least `number`.
  Status wait_for_all(Counter counter, uint64_t number, const std::string& name) const;
  // How long a trainer may be away.
  std::chrono::milliseconds away_at_most() const;
  Status refuse_others(const Operation& operation) const;
  Status refuse_other_shards(std::span<const Shard> shards, uint64_t number) const;
  ChannelOfRank& of(uint32_t rank) const { return memory_.control().ranks[rank].channels[channel_]; }
  uint64_t step_of(uint32_t rank) const { return memory_.control().ranks[rank].step.load(std::memory_order_relaxed); }
  const Word& word_of(uint32_t rank, uint64_t number) const { return of(rank).words[number % 2]; }

  const SharedMemory& memory_;
  const uint32_t channel_;
  const uint32_t rank_;
  const std::unique_ptr<Carrier> carrier_;
  const std::chrono::milliseconds hangs_after_, late_at_most_;
  uint64_t number_ = 0;  // of the operation under way; its thread's

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> waiting_;  // GUARDED_BY(mutex_)
  bool stopping_ = false;          // GUARDED_BY(mutex_)
  std::thread thread_;
};

}  // namespace penstock::engine
