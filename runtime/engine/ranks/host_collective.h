// HostCollective: among processes that share memory. What a rank takes it copies once, from where it lies in the memory
// of the other; a sum is made in one pass over the values of all ranks, where they lie.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "cpu_optim/gradient.h"
#include "runtime/engine/ranks/ranks.h"
#include "runtime/engine/ranks/shared_memory.h"
#include "tiering/collective.h"

namespace penstock::engine {

class HostCollective final : public Collective {
 public:
  // `memory` outlives it. `area`: the rank's own part of it, empty where the channel has none.
  static Result<std::unique_ptr<HostCollective>> make(const SharedMemory& memory, uint32_t channel, uint32_t rank,
                                                      std::span<std::byte> area, const RanksOptions& options);
  ~HostCollective() override;

  uint32_t rank() const override { return rank_; }
  uint32_t ranks() const override { return memory_.ranks(); }
  std::span<std::byte> memory() const override { return area_; }
  void gather(std::span<const Shard> shards, Then then) override;
  void reduce(const Reduction& reduction, Then then) override;
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all, Then then) override;
  void barrier(const Status& mine, Then then) override;

 private:
  HostCollective(const SharedMemory& memory, uint32_t channel, uint32_t rank, std::span<std::byte> area,
                 const RanksOptions& options)
      : memory_(memory),
        channel_(channel),
        rank_(rank),
        area_(area),
        hangs_after_(options.hangs_after),
        late_at_most_(options.late_at_most) {}

  struct Operation {
    std::string name;  // for messages
    Word word;         // its digest, and what small ones give
    Then then;
    std::function<Status(uint64_t number)> work = {};  // when all have come
    bool others_read = false;                          // this rank's memory, until they have done their part
  };
  // `digest`: of what all ranks must say alike.
  static Operation make_operation(std::string name, uint64_t digest, Then then);
  void begin(Operation operation);
  void run();
  Status carry_out(const Operation& operation);
  using Counter = std::atomic<uint64_t> ChannelOfRank::*;
  // Until every rank's counter is at least `number`.
  Status wait_for_all(Counter counter, uint64_t number, const std::string& name) const;
  // How long a trainer may be away.
  std::chrono::milliseconds away_at_most() const;
  Status refuse_others(const Operation& operation) const;
  ChannelOfRank& of(uint32_t rank) const { return memory_.control().ranks[rank].channels[channel_]; }
  uint64_t step_of(uint32_t rank) const { return memory_.control().ranks[rank].step.load(std::memory_order_relaxed); }
  const Word& word_of(uint32_t rank, uint64_t number) const { return of(rank).words[number % 2]; }
  Status sum(const Reduction& reduction) const;

  const SharedMemory& memory_;
  const uint32_t channel_;
  const uint32_t rank_;
  const std::span<std::byte> area_;
  const std::chrono::milliseconds hangs_after_, late_at_most_;
  const cpu_optim::GradientKernels kernels_;
  uint64_t number_ = 0;  // of the operation under way; its thread's

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> waiting_;  // GUARDED_BY(mutex_)
  bool stopping_ = false;          // GUARDED_BY(mutex_)
  std::thread thread_;
};

}  // namespace penstock::engine
