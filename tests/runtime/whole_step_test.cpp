// Whole training steps: weights arrive, are computed with where they lie, and are updated, bit for bit as in a plain
// loop, whatever the placement, the group of micro-batches, the order of gradients and what is skipped or struck.
#include <gtest/gtest.h>

#include <random>

#include "tests/support/capricious_device.h"
#include "tests/support/training_world.h"

namespace penstock::engine {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

enum class Where { in_place, on_device };

// Draws one model, budget and course of training.
class Course {
 public:
  explicit Course(uint64_t seed, Where where = Where::in_place)
      : random_(seed), world_(seed, 1 + static_cast<uint32_t>(up_to(1)), {70'000, 65'536, 131'073, 40'000, 20'000}) {
    PlanRequest& request = world_.options.request;
    request.workload.micro_batches = 1 + static_cast<uint32_t>(up_to(3));
    std::vector<std::vector<uint32_t>> uses = {{0}, {1}, {2}, {3}, {4}};
    for (uint64_t again = up_to(2); again > 0; --again) uses.insert(uses.begin() + 2, std::vector<uint32_t>{1});
    if (up_to(1)) uses.back().push_back(0);  // tied
    world_.set_uses(uses);
    if (up_to(2) == 0) request.workload.units[3].trainable = false;
    request.choices.micro_batch_group = 1 + static_cast<uint32_t>(up_to(request.workload.micro_batches - 1));
    request.choices.activations = up_to(1) ? ActivationChoice::keep : ActivationChoice::recompute;
    request.choices.weights = static_cast<WeightRest>(up_to(2));
    if (up_to(1)) request.choices.host_state_share = static_cast<double>(up_to(2)) / 2;
    if (up_to(1)) request.choices.retained_host_share = static_cast<double>(up_to(2)) / 2;
    if (up_to(1)) request.choices.window_tiles = 3 + static_cast<uint32_t>(up_to(3));
    request.durability = Durability{static_cast<Durability::Kind>(up_to(2)), 2};
    Clipping& clipping = request.workload.clipping;
    const double norms[] = {0, 1e-4, 1e3};
    clipping.norm = world_.settings.clip = norms[up_to(2)];
    clipping.skips_overflow = world_.settings.skip_overflow = up_to(1);
    world_.settings.loss_scale = up_to(1) ? 1 : 1024;
    manner_.by_parameter = up_to(1);
    manner_.leaves_zeros = up_to(1);
    if (where == Where::on_device) compute_on_device(seed);
  }

  void run(uint64_t steps) {
    ASSERT_TRUE(world_.create().ok());
    open();
    if (testing::Test::HasFatalFailure()) return;
    const uint32_t planned = world_.options.request.workload.micro_batches;
    for (uint64_t step = 1; step <= steps; ++step) {
      world_.overflowing_unit.reset();
      if (up_to(3) == 0) discard_within(1 + static_cast<uint32_t>(up_to(planned - 1)));
      const bool skips = world_.options.request.workload.clipping.skips_overflow && up_to(4) == 0;
      // Some are known to overflow with the first gradients, some only with the last, when much has been updated.
      world_.overflowing_unit.reset();
      const bool may_be_late =
          world_.options.request.workload.units[0].parameters.size() != 1;  // that has none in use 0
      const bool late = skips && may_be_late && up_to(1);
      if (late) world_.overflowing_unit = 0;
      const float usual = up_to(1) ? 1e-3f : 2.0f;
      const float size = (skips && !late ? kNan : usual) * static_cast<float>(world_.settings.loss_scale);
      const uint32_t count = 1 + static_cast<uint32_t>(up_to(planned - 1));
      Result<StepReport> report = world_.train(*engine_, count, size, manner_);
      ASSERT_TRUE(report.ok()) << report.status().message();
      world_.plain_train(engine_->steps_done(), count, size);
      struck += report->verdict == Verdict::strike;
      skipped += report->verdict == Verdict::skip;
      ASSERT_EQ(report->verdict == Verdict::skip, skips);
      if (up_to(1)) evaluate();
      if (up_to(3) == 0) reopen();
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(world_.words_different(*engine_), 0u);
  }

  std::string words() const {
    const PlanRequest& request = world_.options.request;
    const PlanChoices& choices = request.choices;
    return text(streams_[0] ? "on a device, " : "", streams_[1] ? "gradients from another stream, " : "",
                request.workload.uses.size(), " uses, the last of ", request.workload.uses.back().units.size(),
                " units, ", request.workload.micro_batches, " micro-batches in groups of ", *choices.micro_batch_group,
                ", weights ", static_cast<int>(choices.weights), ", state in host ",
                choices.host_state_share.value_or(-1), ", retained ", choices.retained_host_share.value_or(-1),
                ", durable ", text_of(*request.durability), ", clip ", request.workload.clipping.norm,
                request.workload.clipping.skips_overflow ? ", skipping" : "",
                manner_.by_parameter ? ", gradients by parameter" : "", manner_.leaves_zeros ? ", zeros left out" : "",
                request.workload.units[3].trainable ? "" : ", a frozen unit");
  }

  int struck = 0, skipped = 0, discarded = 0;

 private:
  uint64_t up_to(uint64_t n) { return random_() % (n + 1); }

  void compute_on_device(uint64_t seed) {
    MachineProfile& machine = world_.options.request.machine;
    machine.devices = 1;
    machine.host_to_device_gbps = machine.device_to_host_gbps = 25;
    world_.options.request.budgets.device_bytes = 64 * kMiB;
    world_.options.device = [seed](uint64_t arena_bytes) { return test::open_capricious_device(seed, arena_bytes); };
    world_.computing = work_stream(streams_[0] = std::make_unique<test::CapriciousStream>(seed));
    if (up_to(1)) world_.giving = work_stream(streams_[1] = std::make_unique<test::CapriciousStream>(seed + 1));
  }
  static WorkStream work_stream(const std::unique_ptr<test::CapriciousStream>& stream) {
    return {stream->handle(), [on = stream.get()](std::function<void()> work) { on->put(std::move(work)); }};
  }
  void open() {
    Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }
  void reopen() {
    ASSERT_TRUE(engine_->settle().ok());
    engine_.reset();
    open();
  }
  void evaluate() {
    const Result<TrainingWorld::Answers> answers = world_.evaluate(*engine_);
    ASSERT_TRUE(answers.ok()) << answers.status().message();
    ASSERT_EQ(*answers, world_.plain_evaluate());
  }
  // The trainer fails somewhere in the step.
  void discard_within(uint32_t count) {
    if (engine_->plan().durability.kind != Durability::Kind::step && !engine_->plan().clipping) return;
    TrainingWorld::Manner failing = manner_;
    uint64_t passes = up_to(12);
    failing.before_pass = [&](const ComputePass&) {
      return passes-- == 0 ? Status(Code::kEnvironment, "out of data") : Status();
    };
    const Result<StepReport> report = world_.train(*engine_, count, 1, failing);
    if (report.ok()) {
      world_.plain_train(engine_->steps_done(), count, 1);
      return;
    }
    ASSERT_EQ(report.status().message(), "out of data");
    const Status discarded_well = engine_->discard();
    ASSERT_TRUE(discarded_well.ok()) << discarded_well.message();
    ++discarded;
  }

  std::mt19937_64 random_;
  TrainingWorld world_;
  TrainingWorld::Manner manner_;
  std::unique_ptr<Engine> engine_;
  // End first: what is on them reads the engine's memory.
  std::array<std::unique_ptr<test::CapriciousStream>, 2> streams_;
};

void leave_the_bits_of_a_plain_loop(Where where) {
  int struck = 0, skipped = 0, discarded = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Course course(seed, where);
    SCOPED_TRACE(text("seed ", seed, ": ", course.words()));
    course.run(5);
    if (testing::Test::HasFailure()) return;
    struck += course.struck;
    skipped += course.skipped;
    discarded += course.discarded;
  }
  EXPECT_GT(struck, 20);
  EXPECT_GT(skipped, 5);
  EXPECT_GT(discarded, 5);
}

TEST(WholeSteps, LeaveTheBitsOfAPlainLoop) { leave_the_bits_of_a_plain_loop(Where::in_place); }

TEST(WholeSteps, LeaveTheBitsOfAPlainLoopOnADevice) { leave_the_bits_of_a_plain_loop(Where::on_device); }

// Copies wait until the test lets them go.
class GatedBackend final : public gpu::HostBackend {
 public:
  using HostBackend::HostBackend;

  Status copy(std::byte* target, const std::byte* source, uint64_t bytes, gpu::Direction direction,
              Stream stream) override {
    PENSTOCK_TRY(call([](void* gate) { static_cast<std::atomic<bool>*>(gate)->wait(false); }, &open, stream));
    return HostBackend::copy(target, source, bytes, direction, stream);
  }

  std::atomic<bool> open = false;
};

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
  request.choices.weights = WeightRest::host;
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

class TrainingVerbs : public testing::Test {
 protected:
  void SetUp() override {
    world_.set_uses({{0}, {1}});
    world_.options.request.workload.micro_batches = 2;
    world_.options.request.choices.micro_batch_group = 2;
    ASSERT_TRUE(world_.create().ok());
    Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }
  Status begin() { return engine_->begin({.groups = world_.groups, .micro_batches = 2}); }

  TrainingWorld world_{3, 1, {5000, 6000}};
  std::unique_ptr<Engine> engine_;
};

TEST_F(TrainingVerbs, SayTheOrderOfThePlan) {
  ASSERT_TRUE(begin().ok());
  using enum Direction;
  const std::vector<ComputePass> vertical = {{forward, 0, 0},  {forward, 0, 1},  {forward, 1, 0},  {forward, 1, 1},
                                             {backward, 1, 0}, {backward, 1, 1}, {backward, 0, 0}, {backward, 0, 1}};
  EXPECT_EQ(engine_->passes(), vertical);
}

TEST_F(TrainingVerbs, RefuseAWrongOrderAndGoOn) {
  using enum Direction;
  auto refusal = [](const auto& result) {
    EXPECT_EQ(result.code(), Code::kUsage);
    return result.message();
  };
  EXPECT_EQ(refusal(engine_->acquire({forward, 0, 0}).status()), "acquire: called outside a step");
  ASSERT_TRUE(begin().ok());
  EXPECT_EQ(refusal(begin()), "begin: called inside a step");
  EXPECT_EQ(refusal(engine_->acquire({forward, 1, 0}).status()),
            "acquire: forward of use use1, micro-batch 0: expected forward of use use0, micro-batch 0");
  EXPECT_EQ(refusal(engine_->release({forward, 0, 0})), "release: the pass was not acquired");
  ASSERT_TRUE(engine_->acquire({forward, 0, 0}).ok());
  EXPECT_EQ(refusal(engine_->acquire({forward, 0, 0}).status()), "acquire: the pass before has not been released");
  EXPECT_EQ(refusal(engine_->release({forward, 0, 1})),
            "release: forward of use use0, micro-batch 1: expected forward of use use0, micro-batch 0");
  const std::vector<float> ones(5000, 1.0f);
  EXPECT_EQ(refusal(engine_->gradient(0, 0, Dtype::fp32, std::as_bytes(std::span(ones)))),
            "gradient: unit 0, micro-batch 0: its backward pass is not acquired");
  EXPECT_EQ(refusal(engine_->step().status()), "step: expected forward of use use0, micro-batch 0 before it");
  ASSERT_TRUE(engine_->release({forward, 0, 0}).ok());
  ASSERT_TRUE(engine_->discard().ok());
  const Result<StepReport> report = world_.train(*engine_, 2, 1, {});
  ASSERT_TRUE(report.ok()) << report.status().message();
  world_.plain_train(1, 2, 1);
  EXPECT_EQ(world_.words_different(*engine_), 0u);
  EXPECT_EQ(refusal(engine_->acquire({forward, 0, 0}).status()), "acquire: called outside a step");
}

TEST_F(TrainingVerbs, PassForwardBetweenStepsInAnyOrderAndRefuseTheRest) {
  using enum Direction;
  auto refusal = [](const auto& result) {
    EXPECT_EQ(result.code(), Code::kUsage);
    return result.message();
  };
  EXPECT_EQ(refusal(engine_->end_forward()), "end_forward: called outside of forward passes");
  ASSERT_TRUE(engine_->begin_forward().ok());
  EXPECT_EQ(refusal(engine_->begin_forward()), "begin_forward: called between begin_forward() and end_forward()");
  EXPECT_EQ(refusal(begin()), "begin: called between begin_forward() and end_forward()");
  EXPECT_EQ(refusal(engine_->step().status()), "step: called between begin_forward() and end_forward()");
  EXPECT_EQ(refusal(engine_->acquire({backward, 1, 0}).status()),
            "acquire: backward of use use1, micro-batch 0: between steps there are forward passes only");
  EXPECT_EQ(refusal(engine_->acquire({forward, 2, 0}).status()), "acquire: use 2 of 2");
  EXPECT_EQ(refusal(engine_->release({forward, 0, 0})), "release: the pass was not acquired");
  for (uint32_t use : {1u, 1u, 0u, 1u, 0u, 0u}) {
    const Result<std::vector<UnitWeights>> weights = engine_->acquire({forward, use, 0});
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    ASSERT_EQ(weights->size(), 1u);
    for (size_t i = 0; i < weights->front().elements; ++i) {
      ASSERT_EQ(weights->front().bytes[2 * i + 1], static_cast<std::byte>(world_.plain().units[use].high(i) >> 8));
    }
    EXPECT_EQ(refusal(engine_->acquire({forward, 0, 0}).status()), "acquire: the pass before has not been released");
    EXPECT_EQ(refusal(engine_->release({forward, 1 - use, 0})),
              text("release: forward of use use", 1 - use, ", micro-batch 0: use ", use, " is acquired"));
    ASSERT_TRUE(engine_->release({forward, use, 0}).ok());
  }
  ASSERT_TRUE(engine_->acquire({forward, 0, 0}).ok());
  ASSERT_TRUE(engine_->end_forward().ok()) << "a pass that is held ends with the others";
  const Result<StepReport> report = world_.train(*engine_, 2, 1, {});
  ASSERT_TRUE(report.ok()) << report.status().message();
  world_.plain_train(1, 2, 1);
  EXPECT_EQ(world_.words_different(*engine_), 0u);
  ASSERT_TRUE(engine_->begin_forward().ok());
  engine_.reset();  // in the middle of them
}

}  // namespace
}  // namespace penstock::engine
