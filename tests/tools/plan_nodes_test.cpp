// Forecasts of several nodes: what passes over the network between them.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tools/forecasts.h"
#include "tiering/plan/collective_moves.h"
#include "tools/penstock/quantity.h"
#include "tools/plan/forecast_json.h"
#include "tools/plan/forecast_text.h"

namespace penstock::tools {
namespace {

ForecastRequest four_nodes() {
  ForecastRequest request = ranks_of("8h200-8gen5", 8);
  request.nodes = 4;
  request.micro_batches = 1;
  request.machine.network_gbps = 50;
  return request;
}

const StageForecast& in_stage(const Forecast& forecast, Stage stage) {
  const auto found = std::ranges::find(forecast.stages, stage, &StageForecast::stage);
  EXPECT_NE(found, forecast.stages.end()) << name_of(stage);
  return *found;
}

TEST(PlanOfNodes, CountsWhatPassesOverTheNetwork) {
  const Forecast result = forecast_of(four_nodes());
  ASSERT_EQ(result.stages.size(), 4u);
  EXPECT_EQ(result.ranks, 32u);
  EXPECT_EQ(result.budget_bytes(Tier::host), result.request.budgets.host_bytes / 8);
  const StageForecast &sharded = in_stage(result, Stage::sharded), &hybrid = in_stage(result, Stage::hybrid);
  // 24 of 31 others are on other nodes.
  EXPECT_NEAR(static_cast<double>(sharded.network_bytes), 24.0 / 31 * static_cast<double>(sharded.sent_bytes),
              0.001 * static_cast<double>(sharded.sent_bytes));
  // Weights stay within the node. Of the 32nd of a gradient that a rank adds up, 24 others have parts, and 3 give it
  // theirs; the tied embedding's leaves the device as the fp32 sums of two uses.
  const ModelShape& shape = result.request.shape;
  const auto embedding = static_cast<double>(shape.embedding_parameters());
  const double gradients = 2 * (static_cast<double>(shape.parameters()) - embedding) + 8 * embedding;
  EXPECT_NEAR(static_cast<double>(hybrid.network_bytes), gradients * 27 / 32, 0.01 * gradients);
  EXPECT_LT(hybrid.network_bytes, sharded.network_bytes);
  const auto json = forecast_json(result);
  EXPECT_EQ(json["state_by_zero_stage"].size(), 4u);
  for (const auto& stage : json["state_by_zero_stage"]) {
    if (stage["stage"] != name_of(Stage::hybrid)) continue;
    EXPECT_EQ(stage["sent_bytes"], hybrid.sent_bytes);
    EXPECT_EQ(stage["network_bytes"], hybrid.network_bytes);
    EXPECT_EQ(stage["step_s"], hybrid.step_s);
  }
  EXPECT_NE(forecast_text(result).find("4 such nodes, 50.0 GB/s between them"), std::string::npos);
}

TEST(PlanOfNodes, SharesTheModelWithinANodeWhereTheNetworkIsSlow) {
  ForecastRequest slow = four_nodes();
  slow.machine.network_gbps = 0.1;
  slow.stage = Stage::sharded;
  const Forecast result = forecast_of(slow);
  EXPECT_LT(in_stage(result, Stage::hybrid).step_s, in_stage(result, Stage::sharded).step_s);
  ForecastRequest fast = slow;
  fast.machine.network_gbps = 1000;
  fast.explains = false;
  EXPECT_LT(forecast_of(fast).times.step_s, result.times.step_s / 2);
}

// The drives of all nodes last as long as each, and those of a hybrid stage have a copy on each node.
TEST(PlanOfNodes, CountsTheDrivesOfAllNodes) {
  ForecastRequest request = four_nodes();
  request.explains = false;
  request.stage = Stage::sharded;
  const Forecast sharded = forecast_of(request);
  request.stage = Stage::hybrid;
  const Forecast hybrid = forecast_of(request);
  EXPECT_NEAR(hybrid.written_bytes_per_step, 4 * sharded.written_bytes_per_step, 0.05 * hybrid.written_bytes_per_step);
  double endurance = 0;
  for (const DriveRates& drive : request.machine.drives) endurance += 4 * drive.endurance_bytes;
  EXPECT_NEAR(*hybrid.drive_life_days(), endurance / hybrid.written_bytes_per_step * hybrid.times.step_s / 86400, 1e-6);
}

TEST(PlanOfNodes, SayThatTheNetworkIsAssumed) {
  ForecastRequest request = four_nodes();
  request.explains = false;
  request.stage = Stage::sharded;
  auto notes_of = [](const Forecast& forecast) {
    std::string notes;
    for (const std::string& note : forecast.notes) notes += note;
    return notes;
  };
  EXPECT_EQ(notes_of(forecast_of(request)).find("network"), std::string::npos);
  request.machine.network_gbps = 0;
  const Forecast assumed = forecast_of(request);
  EXPECT_NE(notes_of(assumed).find("the network is assumed to bring a node 12.5 GB/s"), std::string::npos);
  EXPECT_EQ(assumed.request.machine.network_gbps, 12.5);
}

TEST(PlanOfNodes, RefuseWhatMakesNoSense) {
  auto refused = [](uint32_t ranks, uint32_t nodes, std::optional<Stage> stage) {
    ForecastRequest request = ranks_of("8h200-8gen5", ranks);
    request.nodes = nodes;
    request.stage = stage;
    return forecast(request).status().remedy();
  };
  EXPECT_EQ(refused(8, 0, {}), "--nodes 2");
  EXPECT_EQ(refused(8, 16, {}), "--ranks 4");
  EXPECT_EQ(refused(8, 1, Stage::hybrid), "--stage 3");
  EXPECT_EQ(refused(1, 4, Stage::hybrid), "--stage 3");
}

}  // namespace
}  // namespace penstock::tools
