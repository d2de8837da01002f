#include "aio/store/tile_store.h"

#include <gtest/gtest.h>

#include "tests/support/store_records.h"
#include "tests/support/store_world.h"

namespace penstock::aio {
namespace {

StoreShape twelve_tiles() { return small_shape(12, 3000, kBlockElements); }

struct Setting {
  uint32_t drives, slots;
  uint64_t every;
  uint64_t elements, tile_elements;
  WeightPlacement weights = WeightPlacement::beside_state;
};

class TileStoreRun : public testing::TestWithParam<Setting> {};

TEST_P(TileStoreRun, IsBitEqualToAPlainLoopAndGoesOnWhereItWas) {
  const auto [drives, slots, every, elements, tile_elements, weights] = GetParam();
  StoreShape shape = small_shape(2, elements, tile_elements);
  StoreWorld world(drives);
  CreateOptions options;
  options.slots = slots;
  options.weights = weights;
  ASSERT_TRUE(world.create(shape, options).ok());
  for (uint64_t steps : {0, 6, 12}) {
    Result<std::unique_ptr<TileStore>> store = world.open();
    ASSERT_TRUE(store.ok()) << store.status().message();
    EXPECT_TRUE((*store)->open_report().notes.empty());
    ASSERT_EQ((*store)->payload().step, steps);
    StoreTrainer trainer(world.engine(), **store);
    ASSERT_EQ(difference(trainer, shape, steps), "");
    for (int i = 0; i < 6; ++i) ASSERT_TRUE(trainer.step(every).ok());
    ASSERT_TRUE(trainer.settle().ok());
    EXPECT_EQ(trainer.acknowledged(), steps + 6);
    ASSERT_EQ(difference(trainer, shape, steps + 6), "");
    EXPECT_TRUE((*store)->scrub(world.memory())->bad.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, TileStoreRun,
                         testing::Values(Setting{1, 2, 1, 3000, kBlockElements}, Setting{3, 2, 1, 3000, kBlockElements},
                                         Setting{3, 3, 1, 3000, kBlockElements},
                                         Setting{2, 3, 3, 3000, kBlockElements, WeightPlacement::by_unit},
                                         Setting{2, 1, 1, 3000, kBlockElements},
                                         Setting{3, 2, 1, 9 * kBlockElements + 77, 8 * kBlockElements},
                                         Setting{4, 3, 2, 9 * kBlockElements, 2 * kBlockElements,
                                                 WeightPlacement::by_unit}));

uint64_t written_bytes(StoreWorld& world) {
  return world.engine().counters(0).written_bytes + world.engine().counters(1).written_bytes;
}

TEST(TileStore, WritesPagesAndRootsOfLessThanAHundredthOfTheTiles) {
  StoreShape shape = small_shape(8, 4 * kBlockElements, 2 * kBlockElements);
  StoreWorld world(2);
  ASSERT_TRUE(world.create(shape).ok());
  Result<std::unique_ptr<TileStore>> store = world.open();
  StoreTrainer trainer(world.engine(), **store);
  const uint64_t before = written_bytes(world);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(trainer.step().ok());
  ASSERT_TRUE(trainer.settle().ok());
  const uint64_t beside_bytes = written_bytes(world) - before - trainer.tile_bytes_written();
  EXPECT_GT(beside_bytes, 5 * 2 * kRecordBytes) << "the roots";
  EXPECT_LT(beside_bytes, trainer.tile_bytes_written() / 100);
}

TEST(TileStore, KeepsTheStateBesideTheTiles) {
  StoreWorld world(2);
  CreateOptions options;
  options.state_capacity = {.engine_bytes = 80000, .trainer_bytes = kTrainerStateBytesMax};
  ASSERT_TRUE(world.create(twelve_tiles(), options).ok());
  std::mt19937_64 random(1);
  RootPayload last;
  for (uint64_t step = 1; step <= 5; ++step) {
    Result<std::unique_ptr<TileStore>> store = world.open();
    ASSERT_TRUE(store.ok()) << store.status().message();
    if (step > 1) {
      ASSERT_EQ((*store)->payload(), last);
    }
    EXPECT_EQ((*store)->state_capacity(), options.state_capacity);
    last = {.step = step,
            .loss_scale = 0.5 * static_cast<double>(step),
            .config_hash = "hash",
            .engine_state = random_string(random, 80000),
            .trainer_state = random_string(random, kTrainerStateBytesMax)};
    ASSERT_TRUE((*store)->commit_and_wait(last).ok());
    EXPECT_EQ((*store)->payload(), last);
  }
}

TEST(TileStore, WritesOnlyThePagesOfTheStateThatHaveChanged) {
  StoreWorld world(2);
  ASSERT_TRUE(world.create(twelve_tiles()).ok());
  Result<std::unique_ptr<TileStore>> store = world.open();
  RootPayload payload{.step = 1, .trainer_state = std::string(kTrainerStateBytesMax, 't')};
  ASSERT_TRUE((*store)->commit_and_wait(payload).ok());
  const uint64_t roots = 2 * kRecordBytes;
  uint64_t before = written_bytes(world);
  payload.step = 2;
  ASSERT_TRUE((*store)->commit_and_wait(payload).ok());
  EXPECT_EQ(written_bytes(world), before + roots) << "the step alone stands in the root";
  before = written_bytes(world);
  payload.trainer_state.back() = 'x';
  ASSERT_TRUE((*store)->commit_and_wait(payload).ok());
  EXPECT_EQ(written_bytes(world), before + roots + 2 * 4096) << "one page on each drive";
}

TEST(TileStore, RefusesMoreStateThanItHasRoomForAndGoesOn) {
  StoreWorld world(1);
  CreateOptions options;
  options.state_capacity = {.engine_bytes = 3200, .trainer_bytes = 16000};
  ASSERT_TRUE(world.create(twelve_tiles(), options).ok());
  Result<std::unique_ptr<TileStore>> store = world.open();
  const Status refused = (*store)->commit_and_wait({.step = 1, .trainer_state = std::string(16001, 't')});
  EXPECT_EQ(refused.code(), Code::kUsage);
  EXPECT_EQ(refused.message(), "commit: trainer state: 16001 B needed, 16000 B available in the store");
  EXPECT_TRUE((*store)->commit_and_wait({.step = 1, .trainer_state = std::string(16000, 't')}).ok());
  options.state_capacity.engine_bytes = 3199;
  options.existing = CreateOptions::Existing::replace;
  store->reset();
  EXPECT_EQ(world.create(twelve_tiles(), options).message(),
            "engine state: 3200 B needed, 3199 B available in the store");
}

TEST(TileStore, ReadsAnyRangeOfATile) {
  StoreShape shape = small_shape(2, 9 * kBlockElements, 8 * kBlockElements);
  StoreWorld world(3);
  ASSERT_TRUE(world.create(shape).ok());
  Result<std::unique_ptr<TileStore>> store = world.open();
  TileLayout layout = shape.layout(0);
  PlainTraining plain(shape);
  for (const TileLayout::Place& place : layout.places) {
    Buffer buffer = Buffer::on_heap(place.length_bytes + 8192);
    auto reading = (*store)->begin_read(0, {place.offset_bytes, place.length_bytes}, 8192);
    Result<Lease> read =
        world.engine().read(reading->extents, Lease::over(Tier::host, buffer.bytes()), IoEngine::kWhenever).wait();
    (*store)->end_read(reading->place);
    ASSERT_TRUE(read.ok());
    EXPECT_TRUE(std::equal(buffer.bytes().begin() + 8192, buffer.bytes().begin() + 8192 + place.length_bytes,
                           plain.tile(0).begin() + static_cast<ptrdiff_t>(place.offset_bytes)));
  }
}

// The root of the step before is what two slots wait for.
TEST(TileStore, OffersNoSlotUntilTheCommitIsDurable) {
  StoreWorld world(1);
  StoreShape shape = small_shape(1, 3000, kBlockElements);
  ASSERT_TRUE(world.create(shape).ok());
  Result<std::unique_ptr<TileStore>> store = world.open();
  Buffer bytes = Buffer::on_heap((*store)->whole(0).length_bytes);
  auto write = [&] {
    auto writing = (*store)->begin_write(0, NewVersion::final).value();
    ASSERT_TRUE(writing);
    ASSERT_TRUE(world.engine()
                    .write(writing->extents, Lease::over(Tier::host, bytes.bytes()), IoEngine::kWhenever)
                    .wait()
                    .ok());
    std::vector<uint64_t> sums(checksum_count(shape, 0));
    (*store)->written(writing->place, sums);
  };
  write();
  bool durable = false;
  (*store)->commit({.step = 1}, [&](const Status& outcome) { durable = outcome.ok(); });
  EXPECT_EQ((*store)->begin_write(0, NewVersion::final).status().message(), "write of tile 0: no slot is free");
  while (!durable) world.engine().wait(std::chrono::seconds(1));
  write();
}

// The only slot may be written once a root says that it may be torn, and not while a root names it as whole.
TEST(TileStore, OffersTheOnlySlotLaterAndRefusesNothing) {
  StoreWorld world(1);
  StoreShape shape = small_shape(1, 3000, kBlockElements);
  ASSERT_TRUE(world.create(shape, 1).ok());
  Result<std::unique_ptr<TileStore>> store = world.open();
  auto begin_write = [&] { return (*store)->begin_write(0, NewVersion::final).value(); };
  for (uint64_t step = 1; step <= 2; ++step) {
    std::optional<TileStore::Writing> writing = begin_write();
    EXPECT_FALSE(writing) << "the root says that the store is whole";
    while (!(writing = begin_write())) world.engine().wait(std::chrono::seconds(1));
    std::vector<uint64_t> sums(checksum_count(shape, 0));
    (*store)->written(writing->place, sums);
    (*store)->commit({.step = step}, [](const Status&) {});
    EXPECT_FALSE(begin_write()) << "the root under way names it";
    while ((*store)->committing()) world.engine().wait(std::chrono::seconds(1));
  }
}

// What the executor relies on: the payload is the one of the commit, whatever the run does while it goes on.
TEST(TileStore, WaitsForWritesThatWereBegunBeforeTheCommit) {
  StoreWorld world(1);
  StoreShape shape = small_shape(1, 3000, kBlockElements);
  ASSERT_TRUE(world.create(shape).ok());
  Result<std::unique_ptr<TileStore>> store = world.open();
  auto writing = (*store)->begin_write(0, NewVersion::final).value();
  ASSERT_TRUE(writing);
  bool durable = false;
  (*store)->commit({.step = 1}, [&](const Status& outcome) { durable = outcome.ok(); });
  for (int i = 0; i < 100; ++i) world.engine().poll();
  EXPECT_FALSE(durable);
  EXPECT_TRUE((*store)->committing());
  std::vector<uint64_t> sums(checksum_count(shape, 0), 7);
  (*store)->written(writing->place, sums);
  while ((*store)->committing()) world.engine().wait(std::chrono::seconds(1));
  EXPECT_TRUE(durable);
  EXPECT_EQ((*store)->payload().step, 1u);
}

TEST(TileStore, RefusesEverythingAfterAWriteThatFailed) {
  StoreWorld world(1);
  ASSERT_TRUE(world.create(twelve_tiles()).ok());
  Result<std::unique_ptr<TileStore>> store = world.open();
  auto writing = (*store)->begin_write(0, NewVersion::final).value();
  Status outcome;
  (*store)->commit({.step = 1}, [&](const Status& ended) { outcome = ended; });
  (*store)->write_failed(writing->place, errno_status("write 4096 B at 0 of x", EIO));
  EXPECT_NE(outcome.message().find("EIO"), std::string::npos);
  EXPECT_EQ((*store)->begin_write(1, NewVersion::final).status().message(), (*store)->status().message());
  (*store)->commit({.step = 1}, [&](const Status& ended) { outcome = ended.within("again"); });
  EXPECT_EQ(outcome.message(), "again: " + (*store)->status().message());
}

TEST(TileStore, ForgetsASpeculativeWriteThatFailed) {
  StoreWorld world(1);
  ASSERT_TRUE(world.create(twelve_tiles()).ok());
  Result<std::unique_ptr<TileStore>> store = world.open();
  auto writing = (*store)->begin_write(0, NewVersion::unconfirmed).value();
  (*store)->write_failed(writing->place, errno_status("write 4096 B at 0 of x", EIO));
  (*store)->discard();
  EXPECT_TRUE((*store)->status().ok());
  EXPECT_TRUE((*store)->begin_write(0, NewVersion::unconfirmed).ok());
}

TEST(TileStore, CommitsOnlyWhenEveryRankAgrees) {
  StoreWorld world(1);
  ASSERT_TRUE(world.create(twelve_tiles()).ok());
  Result<std::unique_ptr<TileStore>> store = world.open();
  CommitBarriers::Continue go_on;
  CommitBarriers barriers;
  barriers.data_flushed = [&](const Status& mine, CommitBarriers::Continue next) {
    EXPECT_TRUE(mine.ok());
    go_on = std::move(next);
  };
  (*store)->set_barriers(barriers);
  Status outcome;
  bool ended = false;
  (*store)->commit({.step = 1}, [&](const Status& verdict) { outcome = verdict, ended = true; });
  for (int i = 0; i < 100; ++i) world.engine().poll();
  ASSERT_TRUE(go_on);
  EXPECT_FALSE(ended);
  go_on(Status(Code::kEnvironment, "rank 3: flush: EIO"));
  EXPECT_TRUE(ended);
  EXPECT_EQ(outcome.message(), "rank 3: flush: EIO");
  store->reset();
  EXPECT_EQ((*world.open())->payload().step, 0u);
}

TEST(TileStore, SingleSpaceSaysSoWhenARunEndedInsideAStep) {
  StoreWorld world(2);
  StoreShape shape = twelve_tiles();
  ASSERT_TRUE(world.create(shape, 1).ok());
  {
    Result<std::unique_ptr<TileStore>> store = world.open();
    StoreTrainer trainer(world.engine(), **store);
    ASSERT_TRUE(trainer.step().ok());
    ASSERT_TRUE(trainer.settle().ok());
  }
  EXPECT_EQ((*world.open())->payload().step, 1u) << "between steps nothing is lost";
  {
    Result<std::unique_ptr<TileStore>> store = world.open();
    while (!(*store)->begin_write(0, NewVersion::final).value()) world.engine().wait(std::chrono::seconds(1));
  }
  Result<std::unique_ptr<TileStore>> store = world.open();
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), Code::kCorrupt);
  EXPECT_NE(store.status().message().find("ended inside the step after 1"), std::string::npos)
      << store.status().message();
  EXPECT_TRUE(world.open({.purpose = OpenOptions::Purpose::inspect}).ok());
}

}  // namespace
}  // namespace penstock::aio
