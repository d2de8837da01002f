// Another plan between steps: placements, groups, activations and budgets change, the bits do not.
#include <gtest/gtest.h>

#include "aio/resident_memory.h"
#include "runtime/engine/drives_meter.h"
#include "tests/support/throttled_backend.h"
#include "tests/support/whole_step_course.h"

namespace penstock::engine {
namespace {

TEST(NewPlans, LeaveTheBitsOfAPlainLoop) { leave_the_bits_with_new_plans(); }

TEST(NewPlans, LeaveTheBitsOfAPlainLoopOnADevice) {
  const CourseDevice device = course_device();
  leave_the_bits_with_new_plans(&device);
}

class NewPlan : public testing::Test {
 protected:
  void SetUp() override {
    world_.set_uses({{0}, {1}, {2}});
    PlanRequest& request = world_.options.request;
    request.workload.micro_batches = 2;
    request.choices.weights = WeightTier::nvme;
    request.choices.host_state_share = 0;
    request.durability = Durability{Durability::Kind::exit, 1};
    world_.options.on_new_plan = [this](const std::string& line) { lines_.push_back(line); };
    world_.options.on_durable = [this](uint64_t step) { durable_ = step; };
    ASSERT_TRUE(world_.create().ok());
    open();
  }
  void open() {
    Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }
  void train(uint32_t count) {
    const Result<StepReport> report = world_.train(*engine_, count, 1, {.puts = true});
    ASSERT_TRUE(report.ok()) << report.status().message();
    world_.plain_train(engine_->steps_done(), count, 1);
  }
  std::string refusal(const PlanRequest& request, Code code = Code::kUsage) {
    const Status refused = engine_->new_plan(request);
    EXPECT_EQ(refused.code(), code);
    return refused.message();
  }

  TrainingWorld world_{17, 2, {70'000, 65'536, 131'073}};
  std::vector<std::string> lines_;
  std::atomic<uint64_t> durable_ = 0;
  std::unique_ptr<Engine> engine_;
};

TEST_F(NewPlan, MakesEveryStepDurableAndSaysInOneLineWhatChanges) {
  train(2);
  EXPECT_EQ(durable_, 0u);
  PlanRequest request = engine_->request();
  request.choices.weights = WeightTier::host;
  request.choices.host_state_share = 1;
  request.choices.micro_batch_group = 1;
  request.choices.activations = ActivationChoice::keep;
  ASSERT_TRUE(engine_->new_plan(request).ok());
  train(2);
  // Not durable as long as it rests in host memory, until the next plan.
  request.workload.micro_batches = 4;
  request.choices.micro_batch_group.reset();
  request.choices.host_state_share = 0.5;
  ASSERT_TRUE(engine_->new_plan(request).ok());
  EXPECT_EQ(durable_, 2u);
  train(4);
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_TRUE(
      lines_[0].starts_with("new plan after step 1, as asked for: activations of 3 of 3 uses kept, "
                            "micro-batches in groups of 1, "))
      << lines_[0];
  EXPECT_NE(lines_[0].find("; until now "), std::string::npos) << lines_[0];
  EXPECT_EQ(lines_[0].find('\n'), std::string::npos);
  EXPECT_EQ(world_.words_different(*engine_), 0u);
}

// What another length of sequence needs, and more than the first plan had.
TEST_F(NewPlan, HasRoomForUsesThatNeedMore) {
  const uint64_t before = arena_bytes(engine_->plan().budget_lines);
  train(1);
  PlanRequest request = engine_->request();
  for (Use& use : request.workload.uses) use.activation_bytes = use.boundary_bytes = 5 * kMiB;
  ASSERT_TRUE(engine_->new_plan(request).ok());
  EXPECT_GT(arena_bytes(engine_->plan().budget_lines), before + 10 * kMiB);
  world_.options.request = request;
  train(2);
  EXPECT_EQ(world_.activation_bytes_different, 0u);
  EXPECT_EQ(world_.words_different(*engine_), 0u);
}

TEST_F(NewPlan, IsRefusedWhereItDoesNotFitAndTheOldOneGoesOn) {
  train(2);
  const std::string plan = to_text(engine_->plan());
  PlanRequest request = engine_->request();
  for (Use& use : request.workload.uses) use.activation_bytes = use.boundary_bytes = 300 * kMiB;
  refusal(request, Code::kDoesNotFit);
  // More than the run was opened with.
  request.budgets.host_bytes = 2 * kGiB;
  EXPECT_TRUE(refusal(request, Code::kDoesNotFit).size() > 10);
  EXPECT_EQ(to_text(engine_->plan()), plan);
  train(2);
  EXPECT_TRUE(lines_.empty());
  EXPECT_EQ(world_.words_different(*engine_), 0u);
}

TEST_F(NewPlan, IsRefusedForWhatWouldChangeTheBitsOrAPromise) {
  const PlanRequest request = engine_->request();
  PlanRequest other = request;
  other.workload.units[1].elements += 1;
  EXPECT_TRUE(refusal(other).starts_with("new plan: for another model: ")) << refusal(other);
  other = request;
  other.workload.units[1].trainable = false;
  EXPECT_FALSE(refusal(other).empty());
  other = request;
  other.workload.clipping.norm = 1;
  EXPECT_EQ(refusal(other), "new plan: with other clipping, which would change what is learnt");
  other = request;
  other.durability = Durability{};
  EXPECT_EQ(refusal(other), "new plan: with another durability than was promised");
  other = request;
  other.machine.devices = 1;
  other.machine.host_to_device_gbps = other.machine.device_to_host_gbps = 25;
  other.budgets.device_bytes = kGiB;
  EXPECT_FALSE(engine_->new_plan(other).ok());
  ASSERT_TRUE(engine_->begin({.groups = world_.groups, .micro_batches = 2}).ok());
  EXPECT_EQ(refusal(request), "new plan: called inside a step");
  ASSERT_TRUE(engine_->begin_forward().message().size() > 0);
}

TEST(DrivesMeter, CountsWhatMovesWhileEnoughIsInFlightForLongEnough) {
  DrivesMeter meter(100, 0), patient(100, 1e9);
  for (DrivesMeter* each : {&meter, &patient}) {
    each->begin(60);
    each->end(true, 60, true);  // alone
    each->begin(60);
    each->begin(50);
    each->begin(70);
    each->end(true, 60, true);
    each->end(false, 50, false);  // nothing was asked for
    each->end(false, 70, true);   // alone
    each->begin(100);
    each->end(false, 100, true);
  }
  EXPECT_EQ(meter.load().read_bytes, 60);
  EXPECT_EQ(meter.load().written_bytes, 100);
  EXPECT_GT(meter.load().seconds, 0);
  EXPECT_EQ(patient.load().bytes(), 0);
  EXPECT_EQ(patient.load().seconds, 0);
}

// Drives that give a third of what the profile says, whatever else this machine does. With all activations kept nothing
// rests in host memory, and computing takes longer than the drives by the profile; at a third of it the drives do.
class SlowDrives : public testing::Test {
 protected:
  static constexpr double kPlannedGbps = 0.175;  // of each

  void SetUp() override {
    world_.set_uses({{0}, {1}, {2}});
    PlanRequest& request = world_.options.request;
    for (Use& use : request.workload.uses) {
      use.forward_s = 3e-3;
      use.backward_s = 6e-3;
      use.activation_bytes = 2 * kMiB;
    }
    for (DriveRates& drive : request.machine.drives) drive.burst = MixCurve::flat(kPlannedGbps);
    request.durability = Durability{Durability::Kind::exit, 1};
    request.choices.window_tiles = 3;
    PlanChoices least = request.choices;
    least.activations = ActivationChoice::keep;
    least.weights = WeightTier::nvme;
    least.host_state_share = 0;
    const Result<std::vector<BudgetLine>> lines = budget_lines(request, least);
    ASSERT_TRUE(lines.ok()) << lines.status().message();
    request.budgets.host_bytes = needed_bytes(*lines, Tier::host) + 64 * kKiB;
    world_.options.on_new_plan = [this](const std::string& line) { lines_.push_back(line); };
    world_.make_backend_ = [] {
      const double third = kPlannedGbps * 1e9 / 3;
      return std::make_unique<aio::ThrottledBackend>(
          std::make_unique<aio::MemoryBackend>(),
          aio::ThrottleOptions{.read_bytes_per_s = third, .write_bytes_per_s = third});
    };
    ASSERT_TRUE(world_.create().ok());
  }
  // Until there is another plan, or so many steps were taken.
  void train(Engine& engine, uint64_t steps) {
    StepReport report;
    while (report.new_plans == 0 && report.step < steps) {
      const Result<StepReport> taken = world_.train(engine, 1, 1, {.puts = true});
      ASSERT_TRUE(taken.ok()) << taken.status().message();
      report = *taken;
      world_.plain_train(report.step, 1, 1);
    }
  }

  TrainingWorld world_{23, 2, {70'000, 65'536, 131'073}};
  std::vector<std::string> lines_;
};

TEST_F(SlowDrives, BringAPlanThatIsFasterWithThem) {
  world_.options.new_plan_rule = NewPlanRule{.steps = 2, .least_bytes = 1, .least_run_s = 0};
  Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const std::vector<ActivationChoice> kept(3, ActivationChoice::keep);
  EXPECT_EQ((*engine)->plan().activations, kept);
  EXPECT_FALSE((*engine)->plan().has_state_in_memory());
  const double before_s = (*engine)->predicted_step_s();
  train(**engine, 500);  // how long the search takes, the machine says
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_NE(lines_[0].find(", the drives give 0."), std::string::npos) << lines_[0];
  EXPECT_NE(lines_[0].find(" GB/s where 0.350 were planned with: activations of "), std::string::npos) << lines_[0];
  // Of none or of one use, as the rate that was measured has it.
  EXPECT_LE(std::ranges::count((*engine)->plan().activations, ActivationChoice::keep), 1) << lines_[0];
  EXPECT_TRUE((*engine)->plan().has_state_in_memory());
  EXPECT_GT((*engine)->predicted_step_s(), before_s) << "than the drives were expected to allow";
  EXPECT_EQ(world_.words_different(**engine), 0u);
}

TEST_F(SlowDrives, WereExpectedAtTheRateThatTheySustain) {
  for (DriveRates& drive : world_.options.request.machine.drives) {
    drive.sustained = std::exchange(drive.burst, MixCurve::flat(10 * kPlannedGbps));
  }
  world_.options.new_plan_rule = NewPlanRule{.steps = 2, .least_bytes = 1, .least_run_s = 0};
  Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  train(**engine, 500);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_NE(lines_[0].find(" GB/s where 0.350 were planned with: activations of "), std::string::npos) << lines_[0];
  EXPECT_TRUE((*engine)->plan().has_state_in_memory());
}

// As a trainer's is, and full: a search would take more.
TEST_F(SlowDrives, AreLeftAloneWhereTheBudgetIsTheWholeProcessAndItHasNoMoreThanThat) {
  world_.options.new_plan_rule = NewPlanRule{.steps = 2, .least_bytes = 1, .least_run_s = 0};
  PlanRequest& request = world_.options.request;
  request.process_bytes = kEngineOverheadBytes + kKiB;
  request.budgets.host_bytes += request.process_bytes;
  const std::vector<std::byte> taken(request.budgets.host_bytes, std::byte{1});
  ASSERT_GT(aio::resident_bytes_peak(), request.budgets.host_bytes);
  Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  train(**engine, 24);
  ASSERT_EQ(lines_.size(), 1u) << "said once";
  EXPECT_NE(lines_[0].find(" % of what was planned with; the plan stays, for looking for another takes "),
            std::string::npos)
      << lines_[0];
  EXPECT_EQ((*engine)->plan().activations, std::vector<ActivationChoice>(3, ActivationChoice::keep));
}

TEST_F(SlowDrives, AreLeftToTheUserWhoWantsIt) {
  world_.options.new_plan_rule.reset();
  Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const double before_s = (*engine)->predicted_step_s();
  train(**engine, 6);
  EXPECT_TRUE(lines_.empty());
  EXPECT_EQ((*engine)->predicted_step_s(), before_s);
  EXPECT_EQ(world_.words_different(**engine), 0u);
}

}  // namespace
}  // namespace penstock::engine
