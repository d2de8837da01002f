// Units that rest on the device and are updated there: what moves, what is written and when, and what stays untouched.
// That they leave the bits of a plain loop in whatever company is the courses' claim (whole_step_test.cpp).
#include <gtest/gtest.h>

#include "gpu/host_device.h"
#include "tests/support/training_world.h"

namespace penstock::engine {
namespace {

constexpr uint32_t kMicroBatches = 2;

class RestingOnDevice : public testing::Test {
 protected:
  void train_all_on_device() {
    world_.set_uses({{0}, {1}, {2}});
    PlanRequest& request = world_.options.request;
    request.workload.micro_batches = kMicroBatches;
    request.machine.devices = 1;
    request.machine.host_to_device_gbps = request.machine.device_to_host_gbps = 25;
    request.budgets.device_bytes = 64 * kMiB;
    request.choices.device_share = 1;
    world_.options.device = [](uint64_t arena_bytes) { return gpu::open_host_device({.arena_bytes = arena_bytes}); };
  }
  void create() {
    ASSERT_TRUE(world_.create().ok());
    open();
  }
  void open() {
    engine_.reset();
    Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }
  StepReport train(float size, const TrainingWorld::Manner& manner = {}) {
    const Result<StepReport> report = world_.train(*engine_, kMicroBatches, size, manner);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : StepReport();
  }
  uint64_t moves(MoveKind kind) const {
    const std::vector<Move>& all = engine_->plan().moves;
    return static_cast<uint64_t>(std::ranges::count(all, kind, &Move::kind));
  }
  uint64_t slot_bytes() const {
    uint64_t bytes = 0;
    for (const Tile& tile : engine_->plan().tiles.tiles()) bytes += tile.slot_bytes();
    return bytes;
  }

  TrainingWorld world_{17, 1, {70'000, 65'536, 131'073}};
  std::unique_ptr<Engine> engine_;
};

TEST_F(RestingOnDevice, OnlyTheSquaresOfItsGradientComeDownAndADurableStepWritesItThrough) {
  train_all_on_device();
  world_.options.request.durability = Durability{Durability::Kind::every, 2};
  create();
  for (MoveKind kind : {MoveKind::fetch_weight, MoveKind::upload_weight, MoveKind::download_gradient,
                        MoveKind::read_state, MoveKind::spill_gradient}) {
    EXPECT_EQ(moves(kind), 0u) << name_of(kind);
  }
  EXPECT_EQ(moves(MoveKind::download_squares), 3u);
  EXPECT_EQ(moves(MoveKind::update), engine_->plan().tiles.size());
  for (uint64_t step = 1; step <= 5; ++step) {
    const DriveBytes before = engine_->drive_bytes();
    train(1e-3f);
    ASSERT_TRUE(engine_->finish().ok());
    const DriveBytes moved = engine_->drive_bytes() - before;
    EXPECT_EQ(moved.read_bytes, 0u);
    EXPECT_EQ(moved.written_bytes, step % 2 == 0 ? slot_bytes() : 0) << "step " << step;
    world_.plain_train(step, kMicroBatches, 1e-3f);
  }
  EXPECT_EQ(world_.words_different(*engine_), 0u);
  // The fifth is made durable as the engine ends.
  open();
  EXPECT_EQ(engine_->steps_done(), 5u);
  EXPECT_EQ(world_.words_different(*engine_), 0u);
}

// A step that updates nothing writes what the one before it left unwritten, and one after that writes nothing.
TEST_F(RestingOnDevice, ASkippedStepThatIsDurableWritesWhatWasUpdatedBefore) {
  train_all_on_device();
  PlanRequest& request = world_.options.request;
  request.durability = Durability{Durability::Kind::every, 2};
  request.workload.clipping.skips_overflow = world_.settings.skip_overflow = true;
  create();
  const float sizes[] = {1e-3f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity(),
                         std::numeric_limits<float>::infinity()};
  for (uint64_t step = 1; step <= 4; ++step) {
    const DriveBytes before = engine_->drive_bytes();
    EXPECT_EQ(train(sizes[step - 1]).verdict == Verdict::skip, step > 1);
    ASSERT_TRUE(engine_->finish().ok());
    EXPECT_EQ((engine_->drive_bytes() - before).written_bytes, step == 2 ? slot_bytes() : 0) << "step " << step;
    world_.plain_train(step, kMicroBatches, sizes[step - 1]);
  }
  open();
  EXPECT_EQ(engine_->steps_done(), 4u);
  EXPECT_EQ(world_.words_different(*engine_), 0u);
}

// Whole units, and parameters of one in groups of hyper-parameters, now with a clipped gradient and now with a calm
// one.
TEST_F(RestingOnDevice, WhatHasNoGradientStaysUntouchedAndIsNotCounted) {
  train_all_on_device();
  world_.options.request.workload.clipping.norm = world_.settings.clip = 1e-2;
  create();
  const std::vector<Parameter>& parameters = world_.options.request.workload.units[2].parameters;
  ASSERT_GT(parameters.size(), 3u);
  int struck = 0;
  for (uint64_t step = 1; step <= 6; ++step) {
    const bool without_unit = step % 3 == 1, without_parameters = step % 3 == 2;
    TrainingWorld::Manner manner{.by_parameter = true, .leaves_zeros = true};
    if (without_unit) manner.without = {1};
    bool told = false;
    manner.before_pass = [&](const ComputePass&) {
      if (std::exchange(told, true)) return Status();
      if (without_unit) return engine_->absent_gradient(1, Absent::skip);
      for (uint32_t i = 3; without_parameters && i < parameters.size(); i += 5) {  // those that are not given
        PENSTOCK_TRY(engine_->absent_gradient(ParameterId{2, i}, Absent::skip));
      }
      return Status();
    };
    const float size = step % 2 == 0 ? 1e-3f : 2.0f;
    struck += train(size, manner).verdict == Verdict::strike;
    std::vector<plain::Unit::Part>& parts = world_.plain().units[2].parts;
    for (uint32_t i = 3; without_parameters && i < parameters.size(); i += 5) {
      const uint64_t end = parameters[i].first_element + parameters[i].elements;
      for (plain::Unit::Part& part : parts) part.absent |= part.end >= end && part.end <= end + 127;
    }
    std::vector<std::vector<uint16_t>> gradients = world_.plain_gradients(step, kMicroBatches, size);
    world_.plain_update(gradients, without_unit ? std::set<uint32_t>{1} : std::set<uint32_t>());
    for (plain::Unit::Part& part : parts) part.absent = false;
  }
  EXPECT_GT(struck, 0);
  EXPECT_EQ(world_.words_different(*engine_), 0u);
}

TEST_F(RestingOnDevice, IsReadAndWrittenOverBetweenSteps) {
  train_all_on_device();
  create();
  train(1e-3f);
  world_.plain_train(1, kMicroBatches, 1e-3f);
  std::vector<float> values(500);
  for (size_t i = 0; i < values.size(); ++i) {
    world_.plain().units[2].m[65'400 + i] = values[i] = static_cast<float>(i % 31) * 1e-4f;
  }
  ASSERT_TRUE(engine_->write(2, Role::momentum, 65'400, std::as_bytes(std::span(values))).ok());
  EXPECT_EQ(world_.words_different(*engine_), 0u);
  train(1e-3f);
  world_.plain_train(2, kMicroBatches, 1e-3f);
  EXPECT_EQ(world_.words_different(*engine_), 0u);
}

// A frozen unit has a weight there, and neither state nor gradient.
TEST_F(RestingOnDevice, AFrozenUnitTakesNoPlaceFromTheGradientsOfThoseBehindIt) {
  world_.freeze(0, std::nullopt);
  train_all_on_device();
  create();
  for (uint32_t unit = 0; unit < 3; ++unit) EXPECT_TRUE(engine_->plan().rests_on_device(unit)) << unit;
  for (uint64_t step = 1; step <= 3; ++step) {
    train(1e-3f);
    world_.plain_train(step, kMicroBatches, 1e-3f);
  }
  EXPECT_EQ(world_.words_different(*engine_), 0u);
}

TEST_F(RestingOnDevice, IsRefusedToWhoeverMustHearOfUpdates) {
  train_all_on_device();
  ASSERT_TRUE(world_.create().ok());
  world_.options.on_updated = [](uint32_t, uint64_t, std::span<const std::byte>) {};
  for (double share : {1.0, 0.5}) {
    world_.options.request.choices.device_share = share;
    const Status refused = Engine::open(world_.options).status();
    EXPECT_EQ(refused.code(), Code::kUsage) << share;
    EXPECT_EQ(refused.message(),
              "engine: on_updated, and the plan updates tiles on the device, which it is not told of");
  }
  world_.options.request.choices.device_share.reset();
  const Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  for (const Placement& placement : (*engine)->plan().placements) EXPECT_FALSE(placement.state_on_device());
}

}  // namespace
}  // namespace penstock::engine
