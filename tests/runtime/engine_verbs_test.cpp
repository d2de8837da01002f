// What each verb takes, gives and refuses: a refusal is no failure, the engine goes on.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "tests/support/engine_world.h"
#include "tests/support/scripted_backend.h"
#include "tests/support/watchdog.h"

namespace penstock::engine {
namespace {

template <typename T>
Status write(Engine& engine, uint32_t unit, Role role, uint64_t first, const std::vector<T>& values) {
  return engine.write(unit, role, first, std::as_bytes(std::span(values)));
}

// Over two tile boundaries, between steps, wherever the tiles rest.
TEST(Engine, WritesWhatTheNextStepsAndTheNextRunGoOnFrom) {
  struct Rest {
    double host_state_share;
    WeightTier weights;
    Durability durability;
  };
  for (Rest rest : {Rest{0, WeightTier::nvme, {}}, Rest{0, WeightTier::host, {}}, Rest{1, WeightTier::host, {}},
                    Rest{0.5, WeightTier::automatic, {Durability::Kind::every, 2}},
                    Rest{1, WeightTier::host, {Durability::Kind::every, 2}}}) {
    SCOPED_TRACE(testing::Message() << rest.host_state_share << " of the states in host memory");
    EngineWorld world(23);
    PlanRequest& request = world.options.request;
    request.choices.host_state_share = rest.host_state_share;
    request.choices.weights = rest.weights;
    request.durability = rest.durability;
    world.options.request.workload.clipping.skips_overflow = world.settings.skip_overflow = true;
    ASSERT_TRUE(world.create().ok());
    Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    ASSERT_TRUE(world.step(**engine, 0.001f).ok());
    world.plain_step(1, 0.001f);

    const uint64_t first = 65'000, count = 70'000;
    plain::Unit& plain = world.plain().units[0];
    std::vector<uint16_t> high(count), low(count);
    std::vector<float> momentum(count), variance(count);
    for (uint64_t i = 0; i < count; ++i) {
      plain.p[first + i] = static_cast<float>(i % 1009) * 1e-3f - 0.5f;
      plain.m[first + i] = momentum[i] = static_cast<float>(i % 31) * 1e-4f;
      plain.v[first + i] = variance[i] = static_cast<float>(i % 37) * 1e-5f;
      high[i] = plain.high(first + i);
      low[i] = plain.low(first + i);
    }
    ASSERT_TRUE(write(**engine, 0, Role::weight, first, high).ok());
    ASSERT_TRUE(write(**engine, 0, Role::master_low, first, low).ok());
    ASSERT_TRUE(write(**engine, 0, Role::momentum, first, momentum).ok());
    ASSERT_TRUE(write(**engine, 0, Role::variance, first, variance).ok());
    EXPECT_EQ(world.words_different(**engine), 0u);
    EXPECT_EQ((*engine)->steps_done(), 1u);
    // It is durable now: the next run finds it, and so does one after a step that changes nothing.
    engine->reset();
    engine = Engine::open(world.options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    EXPECT_EQ((*engine)->steps_done(), 1u);
    EXPECT_EQ(world.words_different(**engine), 0u);
    for (float size : {0.002f, 0.001f, std::numeric_limits<float>::infinity()}) {
      const uint64_t number = (*engine)->steps_done() + 1;
      ASSERT_TRUE(world.step(**engine, size).ok());
      world.plain_step(number, size);
      if (number == 3) {  // not durable where every second step is
        plain.m[first] = momentum[0] = 0.25f;
        ASSERT_TRUE(write(**engine, 0, Role::momentum, first, std::vector<float>{0.25f}).ok());
      }
    }
    EXPECT_EQ(world.words_different(**engine), 0u);
    engine->reset();
    engine = Engine::open(world.options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    EXPECT_EQ((*engine)->steps_done(), 4u);
    EXPECT_EQ(world.words_different(**engine), 0u);
  }
}

TEST(Engine, RefusesToReadOrWriteWhatIsNotThere) {
  EngineWorld world(29);
  world.options.request.workload.units[1].trainable = false;
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const std::vector<uint16_t> words(10);
  const std::vector<char> odd(3);
  auto expect_refused = [&](const Status& status, const char* why) {
    EXPECT_EQ(status.code(), Code::kUsage) << why;
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  };
  expect_refused(write(**engine, 7, Role::weight, 0, words), "unit 7 of 3");
  expect_refused(write(**engine, 0, Role::gradient, 0, words), "has no gradient");
  expect_refused(write(**engine, 0, Role::weight, 199'991, words), "from weight 199991 of unit unit0");
  expect_refused(write(**engine, 0, Role::weight, ~uint64_t{0}, words), "which has 200000");
  expect_refused(write(**engine, 0, Role::weight, 0, odd), "3 B of bf16");
  expect_refused(write(**engine, 1, Role::weight, 0, words), "unit1 is frozen");
  expect_refused(write(**engine, 1, Role::momentum, 0, words), "unit1 has no momentum");
  std::vector<std::byte> out(20);
  expect_refused((*engine)->read(0, Role::weight, 199'991, out), "from weight 199991");
  // A refusal is no failure: the engine goes on.
  EXPECT_TRUE((*engine)->read(1, Role::weight, 65'526, out).ok());
  EXPECT_TRUE(write(**engine, 0, Role::weight, 199'990, words).ok());
}

TEST(Engine, ReadsAndWritesScalesOneABlock) {
  EngineWorld world(31);
  Workload& workload = world.options.request.workload;
  workload.form.moments = MomentForm::int8;
  for (Unit& unit : workload.units) unit.parameters.clear();
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  ASSERT_TRUE(world.step(**engine, 0.001f).ok());
  const uint64_t elements = workload.units[0].elements;
  auto values = [&](Role role, uint64_t first, std::vector<float>& into) {
    Status status = (*engine)->read(0, role, first, std::as_writable_bytes(std::span(into)));
    EXPECT_TRUE(status.ok()) << status.message();
  };
  std::vector<float> scales(ceil_div(elements, kMomentBlockElements)), roots(scales.size()), last(1);
  std::vector<uint8_t> momentum(elements), momentum_then(elements);
  auto codes = [&](std::vector<uint8_t>& into) {
    ASSERT_TRUE((*engine)->read(0, Role::momentum, 0, std::as_writable_bytes(std::span(into))).ok());
  };
  values(Role::momentum_scale, 0, scales);
  values(Role::variance_scale, 0, roots);
  codes(momentum);
  for (size_t i = 0; i < scales.size(); ++i) ASSERT_GT(scales[i], 0) << "block " << i;  // all tiles', no padding
  values(Role::momentum_scale, scales.size() - 1, last);
  EXPECT_EQ(last[0], scales.back());
  std::vector<float> more(scales.size() + 1);
  const Status refused = (*engine)->read(0, Role::momentum_scale, 0, std::as_writable_bytes(std::span(more)));
  EXPECT_NE(refused.message().find(text("which has ", scales.size())), std::string::npos) << refused.message();

  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i + 1);
  ASSERT_TRUE(write(**engine, 0, Role::momentum_scale, 0, scales).ok());
  std::vector<float> scales_then(scales.size()), roots_then(scales.size());
  values(Role::momentum_scale, 0, scales_then);
  values(Role::variance_scale, 0, roots_then);
  codes(momentum_then);
  EXPECT_EQ(scales_then, scales);
  EXPECT_EQ(roots_then, roots);
  EXPECT_EQ(momentum_then, momentum);
}

// A root that held one would not be believed, or gradients would be multiplied by infinity or by nothing: there a scale
// ends that is halved whenever gradients overflow.
TEST(Engine, RefusesALossScaleThatScalesNothing) {
  EngineWorld world(30);
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  for (double scale : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity(), 0x1p-130, 0x1p130, 1e-320}) {
    EXPECT_EQ((*engine)->begin({.groups = world.groups, .loss_scale = scale}).code(), Code::kUsage) << scale;
  }
  EXPECT_TRUE((*engine)->begin({.groups = world.groups}).ok());
}

// Without clipping, where updates have run by then.
TEST(Engine, TellsTheNormBeforeTheStepEndsSoThatItCanBeDiscarded) {
  for (const double host_state_share : {0.0, 0.5, 1.0}) {
    SCOPED_TRACE(testing::Message() << host_state_share << " of the states in host memory");
    EngineWorld world(37);
    world.options.request.choices.host_state_share = host_state_share;
    ASSERT_TRUE(world.create().ok());
    Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    EXPECT_EQ((*engine)->gradient_norm().status().code(), Code::kUsage) << "outside a step";
    for (const float size : {0.001f, std::numeric_limits<float>::infinity(), 0.002f}) {
      const Status given = world.begin_and_give(**engine, size);
      ASSERT_TRUE(given.ok()) << given.message();
      const Result<double> norm = (*engine)->gradient_norm();
      ASSERT_TRUE(norm.ok()) << norm.status().message();
      ASSERT_EQ(std::isfinite(*norm), std::isfinite(size));
      EXPECT_GT(*norm, 0);
      if (!std::isfinite(*norm)) {
        ASSERT_TRUE((*engine)->discard().ok());
        EXPECT_EQ(world.words_different(**engine), 0u);
        continue;
      }
      EXPECT_EQ(*(*engine)->gradient_norm(), *norm) << "asked again";
      const Result<StepReport> report = (*engine)->step();
      ASSERT_TRUE(report.ok()) << report.status().message();
      EXPECT_EQ(report->gradient_norm, *norm);
      world.plain_step(report->step, size);
    }
    EXPECT_EQ((*engine)->steps_done(), 2u);
    EXPECT_EQ(world.words_different(**engine), 0u);
    ASSERT_TRUE((*engine)->begin({.groups = world.groups}).ok());
    EXPECT_EQ((*engine)->gradient_norm().status().code(), Code::kUsage) << "before its gradients";
    ASSERT_TRUE((*engine)->discard().ok());
  }
}

TEST(Engine, NamesWhatDiffersFromTheConfigurationOfTheStore) {
  EngineWorld world(30);
  world.options.config_hash = "seed 1, head_rows 4, micro-batch 2";
  ASSERT_TRUE(world.create().ok());
  for (const auto& [given, said] :
       {std::pair("seed 1, head_rows 4, micro-batch 3, lora rank 8",
                  "store: written with micro-batch 2, this run has micro-batch 3, lora rank 8"),
        std::pair("seed 1, head_rows 4, micro-batch 2, lora rank 8", "store: written without lora rank 8"),
        std::pair("seed 1, head_rows 4", "store: written with micro-batch 2, which this run is without")}) {
    world.options.config_hash = given;
    const Status refused = Engine::open(world.options).status();
    EXPECT_EQ(refused.code(), Code::kUsage);
    EXPECT_EQ(refused.message(), said);
  }
}

TEST(Engine, RefusesMoreStateThanARootHolds) {
  EngineWorld world(30);
  world.options.config_hash = std::string(4096, 'x');
  Status created = world.create();
  EXPECT_EQ(created.code(), Code::kUsage);
  EXPECT_EQ(created.message(), "configuration hash: 4096 B needed, 256 B available in the store");
  world.options.config_hash = "";
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  ASSERT_TRUE((*engine)->begin({.groups = world.groups}).ok());
  for (uint32_t unit : {0u, 1u, 2u}) ASSERT_TRUE((*engine)->absent_gradient(unit, Absent::zero).ok());
  Status refused = (*engine)->step(std::string(kTrainerStateBytesMax + 1, 'x')).status();
  EXPECT_EQ(refused.code(), Code::kUsage);
  EXPECT_EQ(refused.message(), "step: trainer state: 65537 B needed, 65536 B available in the store");
  // A refusal is no failure: the step goes on.
  const std::string all(kTrainerStateBytesMax, 'x');
  ASSERT_TRUE((*engine)->step(all).ok());
  engine->reset();
  engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ((*engine)->restored_state(), all);
}

TEST(Engine, RefusesAnotherModelByName) {
  EngineWorld world(3);
  ASSERT_TRUE(world.create().ok());
  world.options.request.workload.units[1].elements += 1;
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), Code::kUsage);
  EXPECT_NE(engine.status().message().find("unit1"), std::string::npos) << engine.status().message();
}

TEST(Engine, RefusesAStepWithoutTheHyperParametersOfAGroup) {
  EngineWorld world(3);
  std::vector<Unit>& units = world.options.request.workload.units;
  units[1].parameters = {{"h.1.weight", 0, 5000}, {"h.1.bias", 5120, 100, 3}};
  units[2].group = 4;
  units[2].parameters.clear();
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  auto expect_refused = [&](const std::string& why) {
    Status refused = (*engine)->begin({.groups = world.groups});
    EXPECT_EQ(refused.code(), Code::kUsage);
    EXPECT_EQ(refused.message(), "begin: " + why);
  };
  expect_refused("parameter h.1.bias of unit unit1 is in group 3 of 3");
  world.groups.resize(4);
  expect_refused("unit unit2 is in group 4 of 4");
  world.groups.push_back({.beta1 = 1});
  expect_refused("group 4: adamw: beta1: 1");
  world.groups[4].beta1 = 0;
  EXPECT_TRUE((*engine)->begin({.groups = world.groups}).ok()) << "a refusal is no failure";
}

TEST(Engine, ReadsOfAPlaneNoMoreThanItHoldsAndSeveralTilesAtOnce) {
  Watchdog watchdog(std::chrono::seconds(120), "a read that waits for the one before");
  EngineWorld world(6);
  PlanRequest& request = world.options.request;
  request.choices.host_state_share = 0;
  request.choices.weights = WeightTier::nvme;
  ASSERT_TRUE(world.create().ok());
  std::atomic<uint64_t> read_bytes = 0, reads = 0;
  std::atomic<bool> opened = false, two_are_under_way = false;
  world.make_backend_ = [&] {
    auto script = [&](const aio::Piece& piece) {
      if (!opened || piece.operation != aio::Operation::read) return aio::ScriptedBackend::kPass;
      read_bytes += piece.length_bytes;
      two_are_under_way = ++reads >= 2;
      return aio::ScriptedBackend::kHold;
    };
    return std::make_unique<aio::ScriptedBackend>(std::make_unique<aio::MemoryBackend>(), script, &two_are_under_way);
  };
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  opened = true;
  std::vector<uint16_t> weight(request.workload.units[0].elements);
  ASSERT_TRUE((*engine)->read(0, Role::weight, 0, std::as_writable_bytes(std::span(weight))).ok());
  const uint64_t tiles = ceil_div(weight.size(), kBlockElements);
  EXPECT_LE(read_bytes, weight.size() * sizeof(uint16_t) + tiles * kAlignmentBytes);
  opened = false;
  EXPECT_EQ(world.words_different(**engine), 0u);
}

}  // namespace
}  // namespace penstock::engine
