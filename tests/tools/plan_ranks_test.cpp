// Forecasts of several ranks: what they share, and what they refuse.
#include <gtest/gtest.h>

#include "tests/tools/forecasts.h"
#include "tools/plan/forecast_report.h"

namespace penstock::tools {
namespace {

// GPT-2 with all its state on the drives.
ForecastRequest ranks_of(const char* machine, uint32_t ranks) {
  ForecastRequest request = clipped_step_of("gpt2", machine, 16384);
  request.ranks = ranks;
  request.choices.weights = WeightTier::nvme;
  request.choices.host_state_share = 0;
  return request;
}

TEST(PlanOfRanks, SharesOneHostAmongProcesses) {
  const Forecast alone = forecast_of(ranks_of("cpu-2core", 1)), two = forecast_of(ranks_of("cpu-2core", 2));
  ASSERT_TRUE(alone.fits && two.fits);
  EXPECT_EQ(alone.ranks, 1u);
  EXPECT_EQ(two.ranks, 2u);
  EXPECT_EQ(two.budget_bytes(Tier::host), alone.budget_bytes(Tier::host) / 2);
  // The node computes and moves as much.
  EXPECT_NEAR(two.lane_busy_s(Lane::compute), alone.lane_busy_s(Lane::compute), 0.1 * alone.lane_busy_s(Lane::compute));
  EXPECT_NEAR(two.written_bytes_per_step, alone.written_bytes_per_step, 0.01 * alone.written_bytes_per_step);
  EXPECT_EQ(alone.lane_busy_s(Lane::collective), 0);
  EXPECT_GT(two.lane_busy_s(Lane::collective), 0);
  EXPECT_TRUE(two.unknown_rates().empty());
  EXPECT_EQ(forecast_json(two)["ranks"], 2);
  EXPECT_NE(forecast_text(two).find(", 2 ranks"), std::string::npos);
  EXPECT_EQ(forecast_text(alone).find(" ranks"), std::string::npos);
}

TEST(PlanOfRanks, AreAsManyAsDevicesUnlessSaid) {
  EXPECT_EQ(forecast_of(ranks_of("8h200-8gen5", 0)).ranks, 8u);
  EXPECT_EQ(forecast_of(ranks_of("cpu-2core", 0)).ranks, 1u);
  const Forecast four = forecast_of(ranks_of("8h200-8gen5", 4));
  EXPECT_EQ(four.ranks, 4u);
  EXPECT_EQ(four.budget_bytes(Tier::host), four.request.budgets.host_bytes / 4);
}

TEST(PlanOfRanks, RefuseMoreThanThereAreDevicesAndMoreThanTrainTogether) {
  const std::pair<ForecastRequest, const char*> refused[] = {{ranks_of("8h200-8gen5", 9), "--ranks 8"},
                                                             {ranks_of("cpu-2core", 65), "--ranks 64"}};
  for (const auto& [request, remedy] : refused) {
    const Result<Forecast> result = forecast(request);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), Code::kUsage);
    EXPECT_EQ(result.status().remedy(), remedy) << result.status().message();
  }
}

}  // namespace
}  // namespace penstock::tools
