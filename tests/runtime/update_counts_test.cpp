// Absent gradients of single parameters: they stay untouched and are not counted, as in PyTorch, whatever the
// placement, the tiles, the verdict and where runs end.
#include <gtest/gtest.h>

#include <random>

#include "tests/support/engine_world.h"
#include "tests/support/instrumented.h"

namespace penstock::engine {
namespace {

struct Rest {
  double host_state_share;
  WeightTier weights;
};

std::unique_ptr<Engine> open(EngineWorld& world) {
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(*engine) : nullptr;
}

// A sixth of the parameters each time, and at times a whole unit.
Given luck(uint64_t seed, uint64_t step, uint32_t unit, uint32_t parameter) {
  std::mt19937_64 random(seed * 7919 + step * 131 + unit * 17 + parameter);
  random.discard(3);
  if (step % 3 == 0 && unit == 1) return Given::skip;
  const uint64_t number = random() % 6;
  return number == 0 ? Given::skip : number == 1 ? Given::zero : Given::gradients;
}

TEST(UpdateCounts, LeaveTheBitsOfAPlainLoopThatCountsByParameter) {
  uint64_t seed = 100;
  for (const Rest rest : {Rest{0, WeightTier::nvme}, Rest{0, WeightTier::host}, Rest{0.5, WeightTier::automatic},
                          Rest{1, WeightTier::host}}) {
    for (const double clip : {0.0, 3.0}) {
      for (const uint32_t micro_batches : {1u, 2u}) {
        ++seed;
        if (seed % 5 != 0 && test::kStride > 1) continue;
        SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << rest.host_state_share
                                        << " of the states in host memory, clip " << clip << ", " << micro_batches
                                        << " micro-batches");
        EngineWorld world(seed);
        PlanRequest& request = world.options.request;
        request.choices.host_state_share = rest.host_state_share;
        request.choices.weights = rest.weights;
        request.workload.clipping.norm = world.settings.clip = clip;
        request.workload.clipping.skips_overflow = world.settings.skip_overflow = clip > 0;
        request.workload.micro_batches = world.micro_batches = micro_batches;
        world.give_gradients_in_parts();
        world.given_parameter = [&](uint64_t step, uint32_t unit, uint32_t parameter) {
          return luck(seed, step, unit, parameter);
        };
        ASSERT_TRUE(world.create().ok());
        std::unique_ptr<Engine> engine = open(world);
        ASSERT_TRUE(engine);
        for (uint64_t step = 1; step <= 8; ++step) {
          const float size = step == 5 && clip > 0 ? std::numeric_limits<float>::infinity() : step % 2 ? 1e-3f : 0.5f;
          const Result<StepReport> report = world.step(*engine, size);
          ASSERT_TRUE(report.ok()) << report.status().message();
          world.plain_step(step, size);
          ASSERT_EQ(world.words_different(*engine), 0u) << "step " << step;
          if (step % 3 == 1) {
            engine.reset();
            engine = open(world);
            ASSERT_TRUE(engine);
          }
        }
      }
    }
  }
}

class CountsOfTwo : public testing::Test {
 protected:
  void SetUp() override {
    Unit& unit = world_.options.request.workload.units[0];
    unit.parameters = {{"weight", 0, 70'000}, {"bias", 70'016, 100}};
    world_.give_gradients_in_parts();
    ASSERT_TRUE(world_.create().ok());
    engine_ = open(world_);
    ASSERT_TRUE(engine_);
  }
  Status give(uint32_t parameter) {
    const Parameter& shape = world_.options.request.workload.units[0].parameters[parameter];
    const std::vector<float> ones(shape.elements, 1.0f);
    return engine_->gradient({.unit = 0, .first_element = shape.first_element}, Dtype::fp32,
                             std::as_bytes(std::span(ones)));
  }
  Status begin() { return engine_->begin({.groups = world_.groups}); }
  uint64_t count(uint32_t parameter) { return engine_->update_count({0, parameter}).value(); }

  EngineWorld world_{3, 1, {80'000}};
  std::unique_ptr<Engine> engine_;
};

TEST_F(CountsOfTwo, RiseWithGradientsAlone) {
  ASSERT_TRUE(begin().ok());
  ASSERT_TRUE(engine_->absent_gradient(ParameterId{0, 1}, Absent::skip).ok());
  ASSERT_TRUE(give(0).ok());
  ASSERT_TRUE(engine_->step().ok());
  ASSERT_TRUE(begin().ok());
  ASSERT_TRUE(give(0).ok());
  ASSERT_TRUE(engine_->absent_gradient(ParameterId{0, 1}, Absent::zero).ok());
  ASSERT_TRUE(engine_->step().ok());
  ASSERT_TRUE(begin().ok());
  ASSERT_TRUE(engine_->absent_gradient(ParameterId{0, 0}, Absent::skip).ok());
  ASSERT_TRUE(engine_->absent_gradient(ParameterId{0, 1}, Absent::skip).ok());
  ASSERT_TRUE(engine_->step().ok());
  ASSERT_TRUE(begin().ok());
  ASSERT_TRUE(engine_->absent_gradient(0, Absent::skip).ok());
  ASSERT_TRUE(engine_->step().ok());
  ASSERT_TRUE(begin().ok());
  ASSERT_TRUE(give(1).ok());
  ASSERT_TRUE(engine_->discard().ok());
  EXPECT_EQ(count(0), 2u);
  EXPECT_EQ(count(1), 1u);
  engine_.reset();
  engine_ = open(world_);
  ASSERT_TRUE(engine_);
  EXPECT_EQ(engine_->steps_done(), 4u);
  EXPECT_EQ(count(0), 2u);
  EXPECT_EQ(count(1), 1u);
}

TEST_F(CountsOfTwo, AreWrittenAndGoOnFromThere) {
  ASSERT_TRUE(engine_->write_update_count({0, 1}, 41).ok());
  EXPECT_EQ(engine_->write_update_count({0, 1}, ~uint64_t{0}).code(), Code::kUsage);
  EXPECT_EQ(engine_->write_update_count({0, 2}, 1).message(), "update count: parameter 2 of 2 of unit unit0");
  engine_.reset();
  engine_ = open(world_);
  ASSERT_TRUE(engine_);
  EXPECT_EQ(count(0), 0u);
  EXPECT_EQ(count(1), 41u);
  ASSERT_TRUE(begin().ok());
  ASSERT_TRUE(give(0).ok());
  ASSERT_TRUE(give(1).ok());
  ASSERT_TRUE(engine_->step().ok());
  EXPECT_EQ(count(1), 42u);
}

TEST_F(CountsOfTwo, RefuseAnAbsenceThatCannotBe) {
  auto absent = [&](uint32_t parameter) {
    return engine_->absent_gradient(ParameterId{0, parameter}, Absent::skip).message();
  };
  EXPECT_EQ(absent(0), "absent_gradient: called outside a step");
  ASSERT_TRUE(begin().ok());
  EXPECT_EQ(absent(2), "absent gradient: parameter 2 of 2 of unit unit0");
  ASSERT_TRUE(give(0).ok());
  EXPECT_EQ(absent(0), "absent gradient: parameter weight of unit unit0 has one");
  EXPECT_EQ(absent(1), "");
  EXPECT_EQ(absent(1), "absent gradient: parameter bias of unit unit0 was declared absent");
  EXPECT_EQ(give(1).message(), "gradient: unit 0, micro-batch 0: the gradient is complete already");
  ASSERT_TRUE(engine_->step().ok());
  ASSERT_TRUE(begin().ok());
  EXPECT_EQ(absent(1), "");
  EXPECT_EQ(give(1).message(), "gradient: unit 0, micro-batch 0: parameter bias was declared absent");
  ASSERT_TRUE(give(0).ok());
  ASSERT_TRUE(engine_->step().ok());
}

TEST(UpdateCountsOfInt8Moments, RefuseToLeaveOutAPartOfABlock) {
  EngineWorld world(3, 1, {80'000});
  Workload& workload = world.options.request.workload;
  workload.form.moments = MomentForm::int8;
  workload.units[0].parameters = {{"weight", 0, 70'016}, {"bias", 70'016, 384}, {"scale", 70'400, 9600}};
  world.give_gradients_in_parts();
  ASSERT_TRUE(world.create().ok());
  std::unique_ptr<Engine> engine = open(world);
  ASSERT_TRUE(engine);
  ASSERT_TRUE(engine->begin({.groups = world.groups}).ok());
  EXPECT_EQ(engine->absent_gradient(ParameterId{0, 1}, Absent::skip).message(),
            "absent gradient: parameter bias of unit unit0: some of its int8 moments share a scale with a neighbour's");
  EXPECT_TRUE(engine->absent_gradient(ParameterId{0, 2}, Absent::skip).ok()) << "it begins with a block";
}

}  // namespace
}  // namespace penstock::engine
