// Whole training steps: weights arrive, are computed with where they lie, and are updated, bit for bit as in a plain
// loop, whatever the placement, the group of micro-batches, the order of gradients and what is skipped or struck.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/capricious_device.h"
#include "tests/support/whole_step_course.h"

namespace penstock::engine {
namespace {

TEST(WholeSteps, LeaveTheBitsOfAPlainLoop) { leave_the_bits_of_a_plain_loop(); }

TEST(WholeSteps, LeaveTheBitsOfAPlainLoopOnADevice) {
  const CourseDevice device = course_device();
  leave_the_bits_of_a_plain_loop(&device);
}

// Its gradient is downloaded all the same, and is no later step's. It is told to have none as a whole, or parameter by
// parameter.
TEST(WholeSteps, LeaveNothingOfAUnitWithoutAGradientOnADevice) {
  TrainingWorld world(3, 1, {5000, 6000, 7000});
  world.set_uses({{0}, {1}, {2}});
  world.options.request.workload.micro_batches = 2;
  const auto absent = [](uint64_t step) { return step % 2 == 0 ? 0 : static_cast<uint32_t>(step % 3); };
  const auto by_parameter = [](uint64_t step) { return step % 4 >= 2; };
  world.given = [&](uint64_t step, uint32_t unit) {
    return unit == absent(step) && !by_parameter(step) ? Given::skip : Given::gradients;
  };
  world.given_parameter = [&](uint64_t step, uint32_t unit, uint32_t) {
    return unit == absent(step) && by_parameter(step) ? Given::skip : Given::gradients;
  };
  std::vector<std::unique_ptr<TrainerStream>> streams;
  compute_on(course_device(), 3, 1, world, streams);
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  for (uint64_t step = 1; step <= 8; ++step) {
    const Result<StepReport> report = world.train(**engine, 2, 1, {.by_parameter = true, .puts = true});
    ASSERT_TRUE(report.ok()) << report.status().message();
    world.plain_train(step, 2, 1);
  }
  EXPECT_EQ(world.words_different(**engine), 0u);
  EXPECT_GT(world.absences, 8u);
  engine->reset();
}

// WHOLE_STEP_SEEDS says how many, WHOLE_STEP_FIRST_SEED from which on; every second computes on a device.
TEST(WholeSteps, LeaveTheBitsOfAPlainLoopWhateverTimeEachLaneTakes) {
  const char* asked = std::getenv("WHOLE_STEP_SEEDS");
  const uint64_t seeds = asked ? std::strtoull(asked, nullptr, 10) : test::kStride == 1 ? 4 : 2;
  const CourseDevice device = course_device();
  const char* from = std::getenv("WHOLE_STEP_FIRST_SEED");
  const uint64_t first = from ? std::strtoull(from, nullptr, 10) : 1001;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    Course course(seed, seed % 2 == 0 ? &device : nullptr);
    course.delay_all_lanes(seed);
    SCOPED_TRACE(text("seed ", seed, ": ", course.words()));
    course.run(3);
    if (HasFailure()) return;
  }
}

// The first unit is updated last, and each of its tiles takes longer than the next step takes to come to it.
TEST(WholeSteps, LeaveTheBitsOfAPlainLoopWhereUpdatesAreLate) {
  TrainingWorld world(3, 1, {5 * kBlockElements, 6000});
  world.set_uses({{0}, {1}});
  PlanRequest& request = world.options.request;
  request.choices.weights = WeightTier::host;
  request.choices.tile_elements = kBlockElements;
  world.options.on_updated = [](uint32_t, uint64_t, std::span<const std::byte>) {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
  };
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  for (uint64_t step = 1; step <= 3; ++step) {
    const Result<StepReport> report = world.train(**engine, 1, 1, {});
    ASSERT_TRUE(report.ok()) << report.status().message();
    world.plain_train(step, 1, 1);
  }
  EXPECT_EQ(world.words_different(**engine), 0u);
}

// Copies wait until the test lets them go.
class GatedBackend final : public gpu::HostBackend {
 public:
  using HostBackend::HostBackend;

  Status copy(std::byte* target, const std::byte* source, uint64_t bytes, gpu::CopyWay way, Stream stream) override {
    PENSTOCK_TRY(call([](void* gate) { static_cast<std::atomic<bool>*>(gate)->wait(false); }, &open, stream));
    return HostBackend::copy(target, source, bytes, way, stream);
  }

  std::atomic<bool> open = false;
};

// Each step begins while the one before still updates: what forward has a place for by then is left there, and not
// read.
void compute_with_weights_that_updates_leave(const CourseDevice* device = nullptr) {
  TrainingWorld world(3, 1, {4 * kBlockElements, 3 * kBlockElements, 5 * kBlockElements + 6000, 40'000});
  world.set_uses({{0}, {1}, {2, 3}, {1}});
  PlanRequest& request = world.options.request;
  request.choices.weights = WeightTier::nvme;
  request.choices.host_state_share = 0;
  request.choices.tile_elements = kBlockElements;
  request.choices.window_tiles = 3;
  request.choices.ahead_window_tiles = 0;
  request.workload.clipping.norm = world.settings.clip = 1e-4;
  world.make_backend_ = [] {
    const aio::FaultOptions slow{.seed = 3, .delay_chance = 1, .delay_rounds_max = 64};
    return std::make_unique<aio::FaultyBackend>(std::make_unique<aio::MemoryBackend>(), slow);
  };
  std::vector<std::unique_ptr<TrainerStream>> streams;
  if (device != nullptr) compute_on(*device, 3, 1, world, streams);
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  constexpr uint64_t kSteps = 8;
  const DriveBytes before = (*engine)->drive_bytes();
  for (uint64_t step = 1; step <= kSteps; ++step) {
    uint64_t passes = step / 2 - 1;  // of a trainer that gives the step up, every second time
    const auto fails = [&passes](const ComputePass&) {
      return passes-- == 0 ? Status(Code::kEnvironment, "out of data") : Status();
    };
    if (step % 2 == 0) {
      ASSERT_EQ(world.train(**engine, 1, 1, {.before_pass = fails}).status().message(), "out of data");
      const Status discarded = (*engine)->discard();
      ASSERT_TRUE(discarded.ok()) << discarded.message();
    }
    const Result<StepReport> report = world.train(**engine, 1, 1, {});
    ASSERT_TRUE(report.ok()) << report.status().message();
    ASSERT_EQ(report->verdict, Verdict::strike);
  }
  ASSERT_TRUE((*engine)->settle().ok());
  EXPECT_GT(((*engine)->drive_bytes() - before).found_bytes, 0u);
  for (uint64_t step = 1; step <= kSteps; ++step) world.plain_train(step, 1, 1);
  EXPECT_EQ(world.words_different(**engine), 0u);
  engine->reset();
}

TEST(WholeSteps, ComputeWithTheWeightsThatUpdatesLeave) { compute_with_weights_that_updates_leave(); }

TEST(WholeSteps, ComputeOnADeviceWithTheWeightsThatUpdatesLeave) {
  const CourseDevice device = course_device();
  compute_with_weights_that_updates_leave(&device);
}

TEST(WholeSteps, LetTheTrainerRunAheadOfTheDevice) {
  TrainingWorld world(7, 1, {5000, 6000});
  world.set_uses({{0}, {1}});
  PlanRequest& request = world.options.request;
  request.machine.devices = 1;
  request.machine.host_to_device_gbps = request.machine.device_to_host_gbps = 25;
  request.budgets.device_bytes = kMiB;
  GatedBackend* backend = nullptr;
  world.options.device = [&](uint64_t arena_bytes) {
    auto made = std::make_unique<GatedBackend>(gpu::HostDeviceOptions{.arena_bytes = arena_bytes});
    backend = made.get();
    return gpu::StreamedDevice::open(std::move(made), arena_bytes);
  };
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  test::CapriciousStream stream(1);
  world.computing = {stream.handle(), [&](std::function<void()> work) { stream.put(std::move(work)); }};
  // Nothing has been copied when the trainer gives the first gradient: it has put three passes on its stream.
  TrainingWorld::Manner manner;
  int passes = 0;
  manner.before_pass = [&](const ComputePass&) {
    if (++passes < 4) return Status();
    EXPECT_FALSE(backend->open.exchange(true));
    backend->open.notify_all();
    return Status();
  };
  const Result<StepReport> report = world.train(**engine, 1, 1, manner);
  ASSERT_TRUE(report.ok()) << report.status().message();
  world.plain_train(1, 1, 1);
  EXPECT_EQ(passes, 4);
  EXPECT_EQ(world.words_different(**engine), 0u);
}

// Its last gradients overflow when the others have been updated.
TEST(WholeSteps, TakeBackTheWeightsInHostMemoryThatASkippedStepHadChanged) {
  TrainingWorld world(11, 2, {70'000, 65'536, 131'073});
  world.set_uses({{0}, {1}, {2}});
  PlanRequest& request = world.options.request;
  request.choices.weights = WeightTier::host;
  request.choices.host_state_share = 0;
  request.workload.clipping.skips_overflow = world.settings.skip_overflow = true;
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  for (uint64_t step = 1; step <= 4; ++step) {
    world.overflowing_unit.reset();
    if (step % 2 == 0) world.overflowing_unit = 0;
    const Result<StepReport> report = world.train(**engine, 1, 1, {});
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(report->verdict == Verdict::skip, step % 2 == 0);
    world.plain_train(step, 1, 1);
  }
  EXPECT_EQ(world.words_different(**engine), 0u);
}

// In fp32 the first two together are the last bit of the third, and each alone is nothing beside it. With that bit the
// sum is rounded up to bf16, without it down.
TEST(WholeSteps, SumTheUsesOfAUnitInTheirOrder) {
  constexpr float kOfUses[] = {0x1p-24f, 0x1p-24f, 1 + 0x1p-8f};
  TrainingWorld world(13, 1, {3000});
  world.set_uses({{0}, {0}, {0}});
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  ASSERT_TRUE((*engine)->begin({.groups = world.groups}).ok());
  for (const ComputePass& pass : (*engine)->passes()) {
    ASSERT_TRUE((*engine)->acquire(pass).ok());
    if (pass.direction == Direction::backward) {
      const std::vector<float> values(3000, kOfUses[pass.use]);
      const Status given =
          (*engine)->gradient({.unit = 0, .use = pass.use}, Dtype::fp32, std::as_bytes(std::span(values)));
      ASSERT_TRUE(given.ok()) << given.message();
    }
    ASSERT_TRUE((*engine)->release(pass).ok());
  }
  ASSERT_TRUE((*engine)->step().ok());
  world.plain_update({std::vector<uint16_t>(3000, TrainingWorld::bf16_of(1 + 0x1p-7f))}, {});
  EXPECT_EQ(world.words_different(**engine), 0u);
}

// Whoever keeps weights of its own has no others to go back to.
TEST(WholeSteps, TellOfNoUpdateThatAVerdictMayTakeBack) {
  TrainingWorld world(17, 1, {70'000, 6000});
  world.set_uses({{0}, {1}});
  std::vector<std::vector<std::byte>> told(2);
  for (uint32_t unit : {0u, 1u}) told[unit].resize(world.plain().units[unit].p.size() * sizeof(uint16_t));
  std::atomic<uint64_t> told_bytes = 0;
  world.options.on_updated = [&](uint32_t unit, uint64_t first, std::span<const std::byte> weights) {
    std::copy(weights.begin(), weights.end(), told[unit].begin() + static_cast<ptrdiff_t>(first * sizeof(uint16_t)));
    told_bytes += weights.size();
  };
  ASSERT_TRUE(world.create().ok());
  Clipping& clipping = world.options.request.workload.clipping;
  for (const Clipping& takes_back : {Clipping{.norm = 1}, Clipping{.skips_overflow = true}}) {
    clipping = takes_back;
    const Status refused = Engine::open(world.options).status();
    EXPECT_EQ(refused.code(), Code::kUsage);
    EXPECT_EQ(refused.message(), "engine: on_updated with clipping, which may take updates back");
  }
  clipping = {};
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  for (uint64_t step = 1; step <= 2; ++step) {
    ASSERT_TRUE(world.train(**engine, 1, 1, {}).ok());
    ASSERT_TRUE((*engine)->finish().ok());
    EXPECT_EQ(told_bytes, step * (told[0].size() + told[1].size()));
    for (uint32_t unit : {0u, 1u}) {
      std::vector<std::byte> weights(told[unit].size());
      ASSERT_TRUE((*engine)->read(unit, Role::weight, 0, weights).ok());
      EXPECT_EQ(told[unit], weights) << "unit " << unit << " after step " << step;
    }
  }
}

TEST(WholeSteps, AreRefusedWhereTheDeviceOfThePlanIsMissingBeforeAnyBegins) {
  TrainingWorld world(5, 1, {5000, 6000});
  world.set_uses({{0}, {1}});
  ASSERT_TRUE(world.create().ok());
  MachineProfile& machine = world.options.request.machine;
  machine.devices = 1;
  machine.host_to_device_gbps = machine.device_to_host_gbps = 25;
  world.options.request.budgets.device_bytes = kGiB;
  const Status refused = Engine::open(world.options).status();
  EXPECT_EQ(refused.code(), Code::kUsage);
  EXPECT_EQ(refused.message(), "engine: the plan computes on a device, and the engine was given none");
}

}  // namespace
}  // namespace penstock::engine
