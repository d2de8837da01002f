// Requests that fail in the middle of a step: the step ends with a message, the store keeps the last committed step,
// and opening it again goes on from there.
//
// FAULT_SEEDS sets how many random histories are run.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/faulty_backend.h"
#include "tests/support/instrumented.h"
#include "tests/support/store_world.h"

namespace penstock::aio {
namespace {

uint64_t seeds() {
  const char* asked = std::getenv("FAULT_SEEDS");
  return asked ? std::strtoull(asked, nullptr, 10) : test::fewer(60);
}

struct Outcome {
  Status status;
  uint64_t acknowledged = 0;
};

class StoreFaults : public testing::Test {
 protected:
  StoreFaults() : shape_(small_shape(12, 3000, kBlockElements)), world_(3) {
    CHECK(world_.create(shape_).ok());
    created_ = world_.image();
  }

  // Runs up to eight steps on drives that fail as asked.
  Outcome run(const FaultOptions& faults) {
    auto backend = std::make_unique<FaultyBackend>(std::make_unique<MemoryBackend>(), faults);
    const FaultyBackend& counting = *backend;
    QueuedIoEngine engine(std::move(backend));
    Outcome outcome;
    {
      Result<std::unique_ptr<TileStore>> store = world_.open_with(engine);
      outcome.status = store.status();
      if (!store.ok()) return outcome;
      StoreTrainer trainer(engine, **store);
      outcome.acknowledged = trainer.acknowledged();
      for (int i = 0; i < 8 && outcome.status.ok(); ++i) outcome.status = trainer.step();
      if (outcome.status.ok()) outcome.status = trainer.settle();
      outcome.acknowledged = trainer.acknowledged();
      if (!(*store)->status().ok()) {
        EXPECT_FALSE((*store)->begin_write(0, NewVersion::final).ok()) << "a store that has failed takes no more";
      }
    }
    struck_ += counting.count_all();
    return outcome;
  }

  // What is there is a committed step not older than `acknowledged`, bit for bit, and goes on.
  void expect_intact(uint64_t acknowledged) {
    Result<std::unique_ptr<TileStore>> store = world_.open();
    ASSERT_TRUE(store.ok()) << store.status().message();
    const uint64_t step = (*store)->payload().step;
    ASSERT_GE(step, acknowledged);
    StoreTrainer trainer(world_.engine(), **store);
    ASSERT_EQ(difference(trainer, shape_, step), "");
    ASSERT_TRUE(trainer.step().ok());
    ASSERT_TRUE(trainer.settle().ok());
    ASSERT_EQ(difference(trainer, shape_, step + 1), "");
  }

  StoreShape shape_;
  StoreWorld world_;
  std::vector<MemoryFile::Bytes> created_;
  uint64_t struck_ = 0;
};

struct Kind {
  Fault fault;
  double chance;
  const char* message;
};

TEST_F(StoreFaults, EndTheStepWithAMessageAndLeaveTheStoreIntact) {
  for (Kind kind : {Kind{Fault::eio, 0.003, "EIO"}, Kind{Fault::enospc, 0.003, "ENOSPC"},
                    Kind{Fault::torn_write, 0.003, "EIO"}, Kind{Fault::failed_flush, 0.03, "flush"}}) {
    uint64_t failed = 0;
    for (uint64_t seed = 1; seed <= seeds(); ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << kind.message);
      world_.put_image(created_);
      FaultOptions faults;
      faults.seed = seed;
      faults.delay_chance = 0.3;
      Outcome outcome = run(faults.with(kind.fault, kind.chance));
      if (!outcome.status.ok()) {
        ++failed;
        ASSERT_NE(outcome.status.message().find(kind.message), std::string::npos) << outcome.status.message();
        ASSERT_NE(outcome.status.message().find("rank0.tiles"), std::string::npos) << outcome.status.message();
      }
      expect_intact(outcome.acknowledged);
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(failed, seeds() / 4) << kind.message;
  }
}

TEST_F(StoreFaults, AreNotSeenWhenTheEngineCanHelpIt) {
  const uint64_t histories = (seeds() + 2) / 3;
  for (uint64_t seed = 1; seed <= histories; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    world_.put_image(created_);
    FaultOptions faults;
    faults.seed = seed;
    faults.delay_chance = 0.3;
    faults.with(Fault::short_move, 0.2).with(Fault::eintr, 0.1).with(Fault::eagain, 0.05);
    Outcome outcome = run(faults);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    ASSERT_EQ(outcome.acknowledged, 8u);
    expect_intact(8);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(struck_, 50 * histories);
}

// A drive that says "written" and has not: found by a checksum, or made good by a mirror; never gone on with.
TEST_F(StoreFaults, OfLyingDrivesAreFound) {
  uint64_t found = 0;
  for (uint64_t seed = 1; seed <= seeds(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    world_.put_image(created_);
    FaultOptions faults;
    faults.seed = seed;
    Outcome outcome = run(faults.with(Fault::lost_write, 0.01));
    Result<std::unique_ptr<TileStore>> store = world_.open();
    if (!outcome.status.ok() || !store.ok()) ++found;
    if (!store.ok()) {
      ASSERT_EQ(store.status().code(), Code::kCorrupt) << store.status().message();
      continue;
    }
    const uint64_t step = (*store)->payload().step;
    StoreTrainer trainer(world_.engine(), **store);
    std::string differs = difference(trainer, shape_, step);
    ASSERT_TRUE(differs.empty() || differs.find("not what was written") != std::string::npos) << differs;
    if (outcome.status.ok() && !differs.empty()) ++found;
  }
  EXPECT_GT(found, seeds() / 4);
}

}  // namespace
}  // namespace penstock::aio
