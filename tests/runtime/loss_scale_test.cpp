// The loss scale is taken out of the gradients wherever their norm decides: which updates run ahead of the verdict, and
// are done again after it, is the same under every scale, and so are the bits.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "tests/support/engine_world.h"
#include "tests/support/scripted_backend.h"
#include "tests/support/watchdog.h"

namespace penstock::engine {
namespace {

class LossScale : public testing::TestWithParam<double> {
 protected:
  // Three tiles on the drives, with a clip of 1.
  LossScale() : world_(19, 1, {3000, 3000, 3000}) {
    PlanRequest& request = world_.options.request;
    request.choices.host_state_share = 0;
    request.choices.weights = WeightTier::nvme;
    request.choices.retained_host_share = 1;
    request.workload.clipping.norm = world_.settings.clip = 1;
    world_.settings.loss_scale = GetParam();
  }
  void open() {
    Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }
  // Of all gradients together; those of one unit have 0.58 times that.
  void step_with_norm(float norm, Verdict expected) {
    const float size = norm / std::sqrt(9000.0f / 3) * static_cast<float>(GetParam());
    const uint64_t number = engine_->steps_done() + 1;
    const Result<StepReport> report = world_.step(*engine_, size);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_NEAR(report->gradient_norm, norm, 0.05 * norm);
    EXPECT_EQ(report->verdict, expected);
    world_.plain_step(number, size);
    ASSERT_TRUE(engine_->finish().ok());
  }

  EngineWorld world_;
  std::atomic<bool> written_ = false;  // something, of a step
  std::unique_ptr<Engine> engine_;
};

// The gradients of the first unit pass the clip, but by less than 4 times: under a scale of 0.25 they look smaller.
TEST_P(LossScale, LetsNothingBeDoneTwiceOnceItIsCertainThatTheStepStrikes) {
  ASSERT_TRUE(world_.create().ok());
  open();
  const DriveBytes before = engine_->drive_bytes();
  step_with_norm(2.6f, Verdict::strike);
  const DriveBytes moved = engine_->drive_bytes() - before;
  EXPECT_EQ(moved.read_bytes, engine_->plan().read_bytes());
  EXPECT_EQ(moved.written_bytes, engine_->plan().written_bytes());
  EXPECT_EQ(world_.words_different(*engine_), 0u);
}

// They do not, by far: under a scale of 1024 they look larger.
TEST_P(LossScale, LetsUpdatesRunAheadOfAVerdictThatConfirmsThem) {
  Watchdog watchdog(std::chrono::seconds(60), "a write before the last gradient");
  world_.given = [this](uint64_t, uint32_t unit) {
    if (unit == 0) written_.wait(false);
    return Given::gradients;
  };
  ASSERT_TRUE(world_.create().ok());
  world_.make_backend_ = [this] {
    auto note = [this](const aio::Piece& piece) {
      if (piece.operation == aio::Operation::write && !written_.exchange(true)) written_.notify_all();
      return aio::ScriptedBackend::kPass;
    };
    return std::make_unique<aio::ScriptedBackend>(std::make_unique<aio::MemoryBackend>(), note);
  };
  open();
  step_with_norm(0.5f, Verdict::confirm);
  EXPECT_EQ(world_.words_different(*engine_), 0u);
}

INSTANTIATE_TEST_SUITE_P(Scales, LossScale, testing::Values(0.25, 1.0, 1024.0), [](const auto& each) {
  return each.param < 1 ? "Quarter" : each.param > 1 ? "Of1024" : "One";
});

}  // namespace
}  // namespace penstock::engine
