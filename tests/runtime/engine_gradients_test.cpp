// How gradients are given: whole, in parts and in any order, absent, and what is refused.
#include <gtest/gtest.h>

#include "tests/support/engine_world.h"

namespace penstock::engine {
namespace {

TEST(Engine, RefusesAnAbsentGradientOfWhatHasOneOrIsNotThere) {
  EngineWorld world(5);
  world.options.request.workload.micro_batches = 2;
  world.options.request.workload.units[1].trainable = false;
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  ASSERT_TRUE((*engine)->begin({.groups = world.groups, .micro_batches = 2}).ok());
  auto give = [&](uint32_t mb) { return world.give_ones(**engine, 2, mb); };
  auto expect_refused = [&](uint32_t unit, const std::string& why) {
    for (Absent absent : {Absent::skip, Absent::zero}) {
      Status refused = (*engine)->absent_gradient(unit, absent);
      EXPECT_EQ(refused.code(), Code::kUsage);
      EXPECT_EQ(refused.message(), "absent gradient: " + why);
    }
  };
  expect_refused(3, "unit 3 of 3");
  expect_refused(1, "unit unit1 is frozen");
  ASSERT_TRUE(give(0).ok());
  expect_refused(2, "unit unit2 has one of micro-batch 0");
  ASSERT_TRUE(give(1).ok());
  expect_refused(2, "unit unit2 has one");
  // A refusal is no failure: the step goes on.
  ASSERT_TRUE((*engine)->absent_gradient(0, Absent::skip).ok());
  expect_refused(0, "unit unit0 was declared absent");
  EXPECT_TRUE((*engine)->step().ok());
}

TEST(Engine, RefusesAStepOfNoMicroBatch) {
  EngineWorld world(30);
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ((*engine)->begin({.groups = world.groups, .micro_batches = 0}).message(),
            "begin: 0 micro-batches, planned for 1");
}

// Counted together, they would complete a gradient that another one is missing from.
TEST(Engine, TakesARefusedGradientAgainOnceThereIsMemoryToAddUpIn) {
  EngineWorld world(5);
  world.options.request.workload.micro_batches = world.micro_batches = 2;  // planned one unit after another
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  ASSERT_TRUE((*engine)->begin({.groups = world.groups, .micro_batches = 2}).ok());
  auto give = [&](uint32_t unit, uint32_t mb) { return world.give_ones(**engine, unit, mb); };
  ASSERT_TRUE(give(2, 0).ok());
  ASSERT_TRUE(give(1, 0).ok());
  const Status refused = give(0, 0);
  EXPECT_EQ(refused.code(), Code::kDoesNotFit);
  EXPECT_EQ(give(0, 1).message(), "gradient: unit 0, micro-batch 1: comes before micro-batch 0");
  ASSERT_TRUE(give(2, 1).ok());
  EXPECT_TRUE(give(0, 0).ok());
  ASSERT_TRUE(give(1, 1).ok());
  EXPECT_FALSE((*engine)->step().ok());
  ASSERT_TRUE(give(0, 1).ok());
  EXPECT_TRUE((*engine)->step().ok());
}

// A tile's place is held until its gradient is whole, and others would wait for it.
TEST(Engine, TakesPartsThatNobodyAddsUpInOrderAndOneUnitAtATime) {
  EngineWorld world(41);
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const std::vector<uint16_t> values(200'000);
  auto give = [&](uint32_t unit, uint64_t first, uint64_t count) {
    return (*engine)->gradient({.unit = unit, .first_element = first}, Dtype::bf16,
                               std::as_bytes(std::span(values).first(count)));
  };
  for (const bool discards : {true, false}) {
    ASSERT_TRUE((*engine)->begin({.groups = world.groups}).ok());
    ASSERT_TRUE(give(0, 0, 70'000).ok());
    EXPECT_EQ(give(0, 70'001, 10).message(),
              "gradient: unit 0, micro-batch 0: elements from 70001 on, expected from 70000 on: where nothing is added "
              "up, parts come in order");
    const std::string held = "unit 1: the gradient of unit unit0 has come in part";
    EXPECT_EQ(give(1, 0, 65'536).message(), "gradient: " + held);
    EXPECT_EQ((*engine)->absent_gradient(1, Absent::zero).message(), "absent gradient: " + held);
    EXPECT_EQ((*engine)->absent_gradient(ParameterId{0, 0}, Absent::skip).message(),
              "absent gradient: of the gradient of unit unit0 a part has come");
    EXPECT_EQ((*engine)->step().status().code(), Code::kUsage);
    ASSERT_TRUE(give(0, 70'000, 100'000).ok());
    if (discards) {
      ASSERT_TRUE((*engine)->discard().ok());
      EXPECT_EQ(world.words_different(**engine), 0u);
      continue;
    }
    ASSERT_TRUE(give(0, 170'000, 30'000).ok());
    EXPECT_EQ(give(0, 0, 10).code(), Code::kUsage);
    ASSERT_TRUE(give(1, 0, 65'536).ok());
    ASSERT_TRUE((*engine)->absent_gradient(2, Absent::skip).ok());
    EXPECT_TRUE((*engine)->step().ok());
  }
}

TEST(Engine, RefusesAMicroBatchTwiceOrBeforeItsTurn) {
  EngineWorld world(5);
  world.options.request.workload.micro_batches = world.micro_batches = 2;
  Workload& workload = world.options.request.workload;
  workload.uses = uses_in_turn(workload.units);
  workload.uses.push_back({.name = "again", .units = {2}});
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  ASSERT_TRUE((*engine)->begin({.groups = world.groups, .micro_batches = 2}).ok());
  auto give = [&](uint32_t unit, uint32_t mb) { return world.give_ones(**engine, unit, mb); };
  auto expect_refused = [&](uint32_t unit, uint32_t mb, const std::string& why) {
    Status refused = give(unit, mb);
    EXPECT_EQ(refused.code(), Code::kUsage);
    EXPECT_EQ(refused.message(), text("gradient: unit ", unit, ", micro-batch ", mb, ": ", why));
  };
  expect_refused(0, 1, "comes before micro-batch 0");
  ASSERT_TRUE(give(0, 0).ok());
  expect_refused(0, 0, "has come already");
  ASSERT_TRUE(give(0, 1).ok());
  expect_refused(0, 1, "the gradient is complete already");
  // Of one that is used twice, each comes twice, in any order of uses.
  EXPECT_EQ(give(2, 0).message(), "gradient: unit 2: 2 uses have it");
  const std::vector<uint16_t> ones(workload.units[2].elements, 0x3f80);
  auto give_of_use = [&](uint32_t use, uint32_t mb) {
    return (*engine)->gradient({.unit = 2, .micro_batch = mb, .use = use}, Dtype::bf16, std::as_bytes(std::span(ones)));
  };
  ASSERT_TRUE(give_of_use(3, 0).ok());
  EXPECT_EQ(give_of_use(2, 1).message(), "gradient: unit 2, micro-batch 1: comes before micro-batch 0");
  ASSERT_TRUE(give_of_use(2, 0).ok());
  EXPECT_EQ(give_of_use(2, 0).message(), "gradient: unit 2, micro-batch 0: has come already");
  EXPECT_EQ(give_of_use(1, 1).message(), "gradient: unit 2, micro-batch 1: use 1 does not name the unit");
  for (uint32_t use : {2, 3}) ASSERT_TRUE(give_of_use(use, 1).ok());
  ASSERT_TRUE((*engine)->absent_gradient(1, Absent::zero).ok());
  EXPECT_TRUE((*engine)->step().ok());
}

}  // namespace
}  // namespace penstock::engine
