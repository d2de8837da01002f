// The central claim: whatever the plan, a tiered step leaves the bits that the plain loop leaves.
#include "runtime/engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "tests/support/engine_world.h"
#include "tests/support/scripted_backend.h"
#include "tests/support/watchdog.h"

namespace penstock::engine {
namespace {

struct Case {
  const char* name;
  uint64_t tile_blocks = 1;
  double host_state_share = 0;
  WeightTier weights = WeightTier::nvme;
  double retained_share = 1;
  double clip = 0;
  bool skip_overflow = false;
  uint32_t micro_batches = 1;
  uint32_t threads = 2;
  uint32_t drives = 2;
  uint32_t window = 4;
  Durability durability = {};
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class Placements : public testing::TestWithParam<Case> {};

TEST_P(Placements, LeaveTheBitsOfThePlainLoop) {
  const Case& c = GetParam();
  EngineWorld world(7, c.drives);
  PlanRequest& request = world.options.request;
  request.workload.micro_batches = world.micro_batches = c.micro_batches;
  request.choices.tile_elements = c.tile_blocks * kBlockElements;
  request.choices.window_tiles = c.window;
  request.choices.host_state_share = c.host_state_share;
  request.choices.weights = c.weights;
  request.choices.retained_host_share = c.retained_share;
  request.durability = c.durability;
  world.options.update_threads = c.threads;
  world.options.request.workload.clipping.norm = world.settings.clip = c.clip;
  world.options.request.workload.clipping.skips_overflow = world.settings.skip_overflow = c.skip_overflow;
  Status created = world.create();
  ASSERT_TRUE(created.ok()) << created.message();
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();

  const float nan = std::numeric_limits<float>::infinity();
  // Calm steps, some that strike, one that overflows, a habit of striking.
  std::vector<float> sizes = {0.001f, 10.0f, 0.001f, nan, 0.002f, 20.0f, 20.0f, 20.0f, 20.0f, 0.001f};
  uint64_t strikes = 0, skips = 0;
  for (float size : sizes) {
    if (!c.skip_overflow && size == nan) continue;
    uint64_t number = (*engine)->steps_done() + 1;
    Result<StepReport> report = world.step(**engine, size);
    ASSERT_TRUE(report.ok()) << report.status().message();
    world.plain_step(number, size);
    strikes += report->verdict == Verdict::strike;
    skips += report->verdict == Verdict::skip;
    if (number % 4 == 0) {
      ASSERT_EQ(world.words_different(**engine), 0u) << "after step " << number;
    }
  }
  EXPECT_EQ(world.words_different(**engine), 0u);
  EXPECT_EQ(strikes > 0, c.clip > 0);
  EXPECT_EQ(skips > 0, c.skip_overflow);

  // What was left behind is what is found again.
  engine->reset();
  engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ((*engine)->steps_done(), c.skip_overflow ? 10u : 9u);
  EXPECT_EQ((*engine)->restored_state(), EngineWorld::trainer_state(c.skip_overflow ? 10 : 9));
  EXPECT_EQ(world.words_different(**engine), 0u);
}

using D = Durability;
INSTANTIATE_TEST_SUITE_P(
    Engine, Placements,
    testing::Values(
        Case{.name = "AllOnDrives"}, Case{.name = "WeightsInHost", .weights = WeightTier::host},
        Case{.name = "HalfInHost", .host_state_share = 0.5},
        Case{.name = "AllInHost", .host_state_share = 1, .weights = WeightTier::host},
        Case{.name = "OneThreadOneDrive", .threads = 1, .drives = 1}, Case{.name = "LargeTiles", .tile_blocks = 3},
        Case{.name = "SmallestWindow", .clip = 5, .window = 1}, Case{.name = "Clipped", .clip = 5},
        Case{.name = "ClippedNothingRetained", .retained_share = 0, .clip = 5},
        Case{.name = "ClippedHalfRetained", .retained_share = 0.5, .clip = 5},
        Case{.name = "ClippedWeightsInHost", .weights = WeightTier::host, .retained_share = 0.5, .clip = 5},
        Case{.name = "ClippedHalfInHost", .host_state_share = 0.5, .retained_share = 0, .clip = 5},
        Case{.name = "ClippedAndSkipping", .weights = WeightTier::host, .clip = 5, .skip_overflow = true},
        Case{.name = "SkippingOnDrives", .retained_share = 0.5, .skip_overflow = true},
        Case{.name = "SkippingHalfInHost", .host_state_share = 0.5, .clip = 5, .skip_overflow = true},
        Case{.name = "FourMicroBatches", .clip = 5, .micro_batches = 4},
        Case{.name = "EveryThirdStep", .durability = {D::Kind::every, 3}},
        Case{.name = "EveryThirdStepClipped",
             .retained_share = 0.5,
             .clip = 5,
             .skip_overflow = true,
             .durability = {D::Kind::every, 3}},
        Case{.name = "EveryThirdStepHalfInHost", .host_state_share = 0.5, .clip = 5, .durability = {D::Kind::every, 3}},
        Case{.name = "AtExitAllInHost", .host_state_share = 1, .durability = {D::Kind::exit, 1}},
        Case{.name = "AtExitOnDrives", .durability = {D::Kind::exit, 1}}),
    [](const auto& each) { return each.param.name; });

TEST(Engine, DecidesByTheDrivesHowOftenAStepIsDurable) {
  EngineWorld world(7, 2);
  PlanRequest& request = world.options.request;
  request.choices.host_state_share = 0.5;
  request.choices.weights = WeightTier::host;
  request.durability.reset();
  request.machine.host_gbps = 20;
  request.machine.drives.resize(2);
  for (DriveRates& drive : request.machine.drives) drive.burst = MixCurve({{0, 1}, {1, 1}});
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const Durability chosen = (*engine)->plan().durability;
  ASSERT_EQ(chosen.kind, Durability::Kind::every) << text_of(chosen);
  EXPECT_NE((*engine)->description().find(text("durable every:", chosen.steps)), std::string::npos);
  for (uint64_t number = 1; number <= chosen.steps + 2; ++number) {
    ASSERT_TRUE(world.step(**engine, 0.001f).ok());
    world.plain_step(number, 0.001f);
  }
  engine->reset();
  engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ((*engine)->steps_done(), chosen.steps + 2);
  EXPECT_EQ(world.words_different(**engine), 0u);

  // Nothing rests in host memory: every step is durable as it is.
  engine->reset();
  request.choices.host_state_share = 0;
  engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ((*engine)->plan().durability.kind, Durability::Kind::step);
  // A store of two slots cannot both relax and update ahead of the verdict.
  engine->reset();
  request.choices.host_state_share = 0.5;
  world.options.request.workload.clipping.norm = 5;
  engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ((*engine)->plan().durability.kind, Durability::Kind::step);
}

TEST(Engine, SpillsMoreGradientsToTheFasterDrive) {
  EngineWorld world(7, 2, {40 * kBlockElements});
  PlanRequest& request = world.options.request;
  request.machine.drives[0].burst = MixCurve::flat(3);
  request.machine.drives[1].burst = MixCurve::flat(1);
  request.choices.retained_host_share = 0;
  world.options.request.workload.clipping.norm = 5;
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const uint64_t gradient_bytes = kBlockElements * 2;
  EXPECT_EQ(world.folder(0).bytes("rank0.gradients.scratch").size(), 30 * gradient_bytes);
  EXPECT_EQ(world.folder(1).bytes("rank0.gradients.scratch").size(), 10 * gradient_bytes);
}

TEST(Engine, DiscardsAStepAsIfItHadNotBegun) {
  for (bool clips : {false, true}) {
    for (WeightTier weights : {WeightTier::host, WeightTier::nvme}) {
      EngineWorld world(11);
      world.options.request.choices.host_state_share = weights == WeightTier::host ? 0.5 : 0;
      world.options.request.choices.weights = weights;
      world.options.request.workload.clipping.norm = world.settings.clip = clips ? 5 : 0;
      ASSERT_TRUE(world.create().ok());
      Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
      ASSERT_TRUE(engine.ok()) << engine.status().message();
      ASSERT_TRUE(world.step(**engine, 0.001f).ok());
      world.plain_step(1, 0.001f);
      // Two units out of three, the second of which has none, then the trainer fails.
      ASSERT_TRUE((*engine)->begin({.groups = world.groups}).ok());
      ASSERT_TRUE(world.give_ones(**engine, 2).ok());
      ASSERT_TRUE((*engine)->absent_gradient(1, Absent::skip).ok());
      Status discarded = (*engine)->discard();
      ASSERT_TRUE(discarded.ok()) << discarded.message();
      EXPECT_EQ(world.words_different(**engine), 0u);
      ASSERT_TRUE(world.step(**engine, 0.002f).ok());
      world.plain_step(2, 0.002f);
      EXPECT_EQ(world.words_different(**engine), 0u);
    }
  }
}

// The partial norm had passed the clip for certain, and then there is no norm.
TEST(Engine, EndsAStepWhoseGradientsAreLargeAndThenNoNumbers) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  for (auto [first, last] : {std::pair{100.0f, kNan}, {kInfinity, kNan}, {kInfinity, kInfinity}, {0.001f, kNan}}) {
    SCOPED_TRACE(testing::Message() << first << ", then " << last);
    EngineWorld world(5);
    world.options.request.workload.clipping.norm = world.settings.clip = 5;
    ASSERT_TRUE(world.create().ok());
    Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    ASSERT_TRUE((*engine)->begin({.groups = world.groups}).ok());
    for (auto [unit, value] : {std::pair{2u, first}, {1u, 0.001f}, {0u, last}}) {
      plain::Unit& plain = world.plain().units[unit];
      const std::vector<uint16_t> gradient(plain.p.size(), static_cast<uint16_t>(plain::bits(value) >> 16));
      ASSERT_TRUE((*engine)->gradient(unit, 0, Dtype::bf16, std::as_bytes(std::span(gradient))).ok());
      plain.add_gradient(gradient.data(), true, true);
    }
    Result<StepReport> report = (*engine)->step();
    ASSERT_TRUE(report.ok()) << report.status().message();
    plain::step(world.plain().units, world.settings, world.plain().updates);
    EXPECT_EQ(world.words_different(**engine), 0u);
  }
}

// The plan reads states in backward order; a trainer may not keep to it.
TEST(Engine, TakesGradientsInAnyOrder) {
  Watchdog watchdog(std::chrono::seconds(120), "a step whose gradients come in another order than planned");
  struct Way {
    double clip, retained_share, host_state_share;
  };
  std::mt19937 random(7);
  for (Way way : {Way{0, 1, 0}, Way{5, 1, 0}, Way{5, 0.5, 0}, Way{5, 0, 0.5}}) {
    for (bool shuffled : {false, true}) {
      EngineWorld world(13, 2, std::vector<uint64_t>(24, 5000));
      PlanRequest& request = world.options.request;
      request.choices.window_tiles = 3;
      request.choices.retained_host_share = way.retained_share;
      request.choices.host_state_share = way.host_state_share;
      world.options.request.workload.clipping.norm = world.settings.clip = way.clip;
      ASSERT_TRUE(world.create().ok());
      Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
      ASSERT_TRUE(engine.ok()) << engine.status().message();
      world.unit_order.resize(24);
      std::iota(world.unit_order.begin(), world.unit_order.end(), 0u);
      // Calm, struck at the end, struck at once, calm.
      for (float size : {0.001f, 0.026f, 10.0f, 0.001f, 0.001f}) {
        if (shuffled) std::shuffle(world.unit_order.begin(), world.unit_order.end(), random);
        const uint64_t number = (*engine)->steps_done() + 1;
        Result<StepReport> report = world.step(**engine, size);
        ASSERT_TRUE(report.ok()) << report.status().message();
        world.plain_step(number, size);
        ASSERT_EQ(world.words_different(**engine), 0u) << "after step " << number;
      }
    }
  }
}

// Every run may group its parameters anew; but a block of int8 moments, which has one scale, has one group.
TEST(Engine, KeepsGroupsOutOfTheStore) {
  EngineWorld world(3);
  Workload& workload = world.options.request.workload;
  workload.form.moments = MomentForm::int8;
  workload.units[1].group = 0;
  workload.units[1].parameters = {{"weight", 0, 1408}, {"bias", 1408, 100, 1}};
  const std::string refusal =
      "unit unit1: parameter bias: begins in group 1 at element 1408, inside a block of 256 int8 moments with one "
      "scale, which begins in group 0";
  for (uint32_t unit : {0u, 2u}) workload.units[unit].parameters.clear();
  EXPECT_EQ(world.create().message(), refusal);
  workload.units[1].parameters[1].group.reset();
  ASSERT_TRUE(world.create().ok());
  workload.units[1].parameters[1].group = 1;
  EXPECT_EQ(Engine::open(world.options).status().message(), refusal);
  workload.units[1].group = 1;
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_TRUE(world.step(**engine, 0.001f).ok());
}

TEST(Engine, LeavesAUnitWithoutGradientUntouched) {
  EngineWorld world(5);
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok());
  auto weights = [&](uint32_t unit) {
    std::vector<uint16_t> values(world.options.request.workload.units[unit].elements);
    EXPECT_TRUE((*engine)->read(unit, Role::master_low, 0, std::as_writable_bytes(std::span(values))).ok());
    return values;
  };
  std::vector<uint16_t> before0 = weights(0), before1 = weights(1);
  ASSERT_TRUE((*engine)->begin({.groups = world.groups}).ok());
  ASSERT_TRUE(world.give_ones(**engine, 2).ok());
  ASSERT_TRUE((*engine)->absent_gradient(1, Absent::skip).ok());
  ASSERT_TRUE((*engine)->absent_gradient(0, Absent::zero).ok());
  Result<StepReport> report = (*engine)->step();
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(weights(1), before1);
  EXPECT_NE(weights(0), before0);  // weight decay moves it
}

// What an earlier step left in memory is written by a step that does not change it, and by no verdict of that taken
// back.
TEST(Engine, WritesAnEarlierStepsUpdateOfAUnitWithoutGradientWhateverTheVerdict) {
  Watchdog watchdog(std::chrono::seconds(120), "a write before the verdict");
  for (float size : {0.001f, 10.0f, std::numeric_limits<float>::infinity()}) {
    EngineWorld world(5);
    PlanRequest& request = world.options.request;
    request.choices.host_state_share = 1;
    request.choices.weights = WeightTier::host;
    request.durability = {Durability::Kind::every, 2};
    request.slots = 3;
    world.options.request.workload.clipping.norm = world.settings.clip = 5;
    world.options.request.workload.clipping.skips_overflow = world.settings.skip_overflow = true;
    ASSERT_TRUE(world.create().ok());
    std::atomic<bool> written = false;
    world.make_backend_ = [&] {
      return std::make_unique<aio::ScriptedBackend>(std::make_unique<aio::MemoryBackend>(),
                                                    [&](const aio::Piece& piece) {
                                                      if (piece.operation == aio::Operation::write) written = true;
                                                      return aio::ScriptedBackend::kPass;
                                                    });
    };
    world.unit_order = {1, 2, 0};
    world.given = [&](uint64_t step, uint32_t unit) {
      if (step == 1) return Given::gradients;
      if (unit == 1) return Given::skip;
      while (!written) std::this_thread::yield();
      return Given::gradients;
    };
    Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    ASSERT_TRUE(world.step(**engine, 0.001f).ok());
    ASSERT_TRUE(world.step(**engine, size).ok());
    world.plain_step(1, 0.001f);
    world.plain_step(2, size);
    engine->reset();
    engine = Engine::open(world.options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    EXPECT_EQ((*engine)->steps_done(), 2u);
    EXPECT_EQ(world.words_different(**engine), 0u) << "gradients of " << size;
  }
}

TEST(Engine, WritesAnEarlierStepsUpdateOfAUnitWithoutGradientAfterADiscardToo) {
  EngineWorld world(5);
  PlanRequest& request = world.options.request;
  request.choices.host_state_share = 1;
  request.choices.weights = WeightTier::host;
  request.durability = {Durability::Kind::every, 2};
  request.slots = 3;
  request.workload.clipping.norm = world.settings.clip = 5;
  ASSERT_TRUE(world.create().ok());
  world.given = [](uint64_t step, uint32_t unit) { return step == 2 && unit == 1 ? Given::skip : Given::gradients; };
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  ASSERT_TRUE(world.step(**engine, 0.001f).ok());
  ASSERT_TRUE((*engine)->begin({.groups = world.groups}).ok());
  const Status discarded = (*engine)->discard();
  ASSERT_TRUE(discarded.ok()) << discarded.message();
  ASSERT_TRUE(world.step(**engine, 0.001f).ok());
  world.plain_step(1, 0.001f);
  world.plain_step(2, 0.001f);
  engine->reset();
  engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ((*engine)->steps_done(), 2u);
  EXPECT_EQ(world.words_different(**engine), 0u);
}

TEST(Engine, CountsNoReadOfWeightsThatAreInMemory) {
  EngineWorld world(5);
  world.options.request.choices.weights = WeightTier::host;
  world.options.request.choices.host_state_share = 0;
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok());
  const Plan& plan = (*engine)->plan();
  uint64_t state_bytes = 0;
  for (const Tile& tile : plan.tiles.tiles()) state_bytes += tile.state_bytes;
  for (int step = 0; step < 2; ++step) {
    const Result<StepReport> report = world.step(**engine, 0.01f);
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->read_bytes, state_bytes);
  }
}

TEST(Engine, TellsWhereTheTimeWent) {
  EngineWorld world(5);
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok());
  bool adds_up = false;  // in one of several, since another process may come between two looks at the clock
  for (int step = 0; step < 20 && !adds_up; ++step) {
    Result<StepReport> report = world.step(**engine, 0.01f);
    ASSERT_TRUE(report.ok());
    double sum = report->trainer_s + report->intake_s;
    for (double stall : report->stall_s) sum += stall;
    adds_up = std::abs(sum - report->wall_s) <= 0.02 * report->wall_s + 1e-3;
    if (step == 0) {
      EXPECT_EQ(report->read_bytes, (*engine)->plan().read_bytes());
    }
  }
  EXPECT_TRUE(adds_up);
}

TEST(Engine, SaysHowLongEachLaneHadSomethingUnderWay) {
  const auto begin = std::chrono::steady_clock::now();
  EngineWorld world(6);
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok());
  std::array<double, kLanes> busy_s{};
  for (int step = 0; step < 3; ++step) {
    Result<StepReport> report = world.step(**engine, 0.01f);
    ASSERT_TRUE(report.ok());
    for (size_t lane = 0; lane < kLanes; ++lane) busy_s[lane] += report->busy_s[lane];
  }
  const double passed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::vector<Move>& moves = (*engine)->plan().moves;
  for (size_t lane = 0; lane < kLanes - 1; ++lane) {
    const auto is_carried = [lane](const Move& move) { return static_cast<size_t>(move.lane) == lane; };
    const bool is_used = std::any_of(moves.begin(), moves.end(), is_carried);
    EXPECT_EQ(busy_s[lane] > 0, is_used) << name_of(static_cast<Lane>(lane));
    EXPECT_LE(busy_s[lane], passed_s) << name_of(static_cast<Lane>(lane));
  }
}

}  // namespace
}  // namespace penstock::engine
