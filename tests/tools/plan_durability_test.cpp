// Forecasts of when steps are durable, and of what that and the commit at exit cost.
#include <gtest/gtest.h>

#include "tests/tools/forecasts.h"
#include "tools/plan/forecast_json.h"
#include "tools/plan/forecast_text.h"

namespace penstock::tools {
namespace {

TEST(Forecast, WritesHostStateAsOftenAsCostsLittle) {
  ForecastRequest request = large_step_of("gpt2-xl", "h100-4gen4");
  request.tokens = 4096;
  const Forecast each = forecast_of(request);
  request.durability.reset();
  const Forecast chosen = forecast_of(request);
  ASSERT_EQ(chosen.durability.kind, Durability::Kind::every);
  EXPECT_GT(chosen.durability.steps, 1u);
  EXPECT_LT(chosen.times.step_s, each.times.step_s);
  request.durability = Durability{Durability::Kind::exit, 1};
  EXPECT_LE(chosen.times.step_s, 1.031 * forecast_of(request).times.step_s);
}

TEST(Forecast, MixesDurableStepsAndTheOthersByTheirShare) {
  ForecastRequest request = large_step_of("gpt2-xl", "h100-4gen4");
  request.tokens = 4096;
  request.choices.device_share = 0;  // what rests there is durable so rarely that other plans would be compared
  auto times_of = [&](Durability::Kind kind, uint32_t steps) {
    request.durability = Durability{kind, steps};
    return forecast_of(request).times;
  };
  const StepTimes each = times_of(Durability::Kind::step, 1), none = times_of(Durability::Kind::exit, 1);
  ASSERT_GT(each.step_s, 1.1 * none.step_s);
  const StepTimes fourth = times_of(Durability::Kind::every, 4);
  EXPECT_NEAR(fourth.step_s, none.step_s + (each.step_s - none.step_s) / 4, 1e-6 * each.step_s);
  EXPECT_NEAR(fourth.drives_busy_s, none.drives_busy_s + (each.drives_busy_s - none.drives_busy_s) / 4,
              1e-6 * each.step_s);
}

TEST(Forecast, CommitsAtExitWhatRestsInMemoryAndNoDurableStepHasWritten) {
  ForecastRequest request = large_step_of("gpt2", "cpu-2core");
  request.scope = StepScope::update_only;
  request.choices.host_state_share = 1;
  request.machine.host_gbps = 8;
  for (DriveRates& drive : request.machine.drives) {
    drive.sustained = MixCurve::flat(1);
    drive.by_memory = MemoryCurve();
    drive.flush_s = 0.25;
  }
  ASSERT_EQ(request.machine.drives.size(), 1u);
  EXPECT_FALSE(forecast_of(request).exit_commit) << "each step is durable";
  EXPECT_TRUE(forecast_json(forecast_of(request))["commit_at_exit"].is_null());

  request.durability = Durability{Durability::Kind::exit, 1};
  const Forecast result = forecast_of(request);
  ASSERT_TRUE(result.exit_commit);
  const auto bytes = static_cast<double>(result.exit_commit->written_bytes);
  EXPECT_NEAR(bytes / static_cast<double>(request.shape.parameters()), 12, 0.01);
  EXPECT_NEAR(result.exit_commit->seconds, bytes / 1e9 + 2 * 0.25, 1e-9);
  const auto json = forecast_json(result)["commit_at_exit"];
  EXPECT_EQ(json["written_bytes"], result.exit_commit->written_bytes);
  EXPECT_EQ(json["predicted_s"], result.exit_commit->seconds);
  EXPECT_NE(forecast_text(result).find("\ncommit at exit: "), std::string::npos) << forecast_text(result);

  // One thread gathers it, four times its traffic at 10 GB/s, where drives are faster than that.
  request.machine.host_gbps = 40;
  for (DriveRates& drive : request.machine.drives) drive.sustained = MixCurve::flat(50);
  EXPECT_NEAR(forecast_of(request).exit_commit->seconds, bytes / 2.5e9 + 2 * 0.25, 1e-9);

  request.choices.host_state_share = 0;
  EXPECT_FALSE(forecast_of(request).exit_commit) << "nothing rests in memory";
}

TEST(Forecast, IsDurableEachStepWhereTheDrivesHoldNoThirdSlot) {
  ForecastRequest request = large_step_of("gpt2-xl", "rtx4090-2gen4");
  request.scope = StepScope::update_only;
  request.clipping.norm = 1;
  request.budgets.host_bytes = 10 * kGiB;
  const Forecast each = forecast_of(request);
  ASSERT_TRUE(each.fits);
  request.durability.reset();
  EXPECT_EQ(forecast_of(request).durability.kind, Durability::Kind::every);
  request.budgets.nvme_bytes = each.needed_bytes(Tier::nvme);
  const Forecast chosen = forecast_of(request);
  EXPECT_TRUE(chosen.fits) << forecast_text(chosen);
  EXPECT_EQ(chosen.durability.kind, Durability::Kind::step);
  EXPECT_EQ(chosen.times.step_s, each.times.step_s);
}

}  // namespace
}  // namespace penstock::tools
