// Ranks, and a collective of theirs, that pass on all they are asked for: for a test's own to differ in one thing.
#pragma once

#include "runtime/engine/ranks/ranks.h"

namespace penstock::test {

class PassingCollective : public Collective {
 public:
  explicit PassingCollective(Collective& inner) : inner_(inner) {}

  uint32_t rank() const override { return inner_.rank(); }
  uint32_t ranks() const override { return inner_.ranks(); }
  std::span<std::byte> memory() const override { return inner_.memory(); }
  Tier tier() const override { return inner_.tier(); }
  void gather(std::span<const Shard> shards, Then then) override { inner_.gather(shards, std::move(then)); }
  void reduce(const Reduction& reduction, Then then) override { inner_.reduce(reduction, std::move(then)); }
  void collect(const Collection& collection, Then then) override { inner_.collect(collection, std::move(then)); }
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all, Then then) override {
    inner_.exchange(mine, all, std::move(then));
  }
  void barrier(const Status& mine, Then then) override { inner_.barrier(mine, std::move(then)); }

 private:
  Collective& inner_;
};

class PassingRanks : public engine::Ranks {
 public:
  explicit PassingRanks(engine::Ranks& inner) : inner_(inner) {}

  uint32_t rank() const override { return inner_.rank(); }
  uint32_t ranks() const override { return inner_.ranks(); }
  std::string name_of(uint32_t rank) const override { return inner_.name_of(rank); }
  Collective& passes() override { return inner_.passes(); }
  Collective& commits() override { return inner_.commits(); }
  Collective* among_devices() override { return inner_.among_devices(); }
  void at_step(uint64_t step) override { inner_.at_step(step); }
  void came() override { inner_.came(); }
  void went() override { inner_.went(); }
  void step_began() override { inner_.step_began(); }
  void step_ended() override { inner_.step_ended(); }
  void progressed() override { inner_.progressed(); }
  void expect_pass(double seconds) override { inner_.expect_pass(seconds); }
  void fail(const Status& why) override { inner_.fail(why); }
  Status status() const override { return inner_.status(); }

 private:
  engine::Ranks& inner_;
};

}  // namespace penstock::test
