// Forecasts of several ranks: what they share, and what they refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/tools/forecasts.h"
#include "tiering/plan/collective_moves.h"
#include "tools/penstock/quantity.h"
#include "tools/plan/forecast_json.h"
#include "tools/plan/forecast_text.h"
#include "tools/plan/node_share.h"

namespace penstock::tools {
namespace {

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
  auto planned = [](const char* machine, uint32_t ranks) {
    ForecastRequest request = ranks_of(machine, ranks);
    if (request.machine.devices > 0) request.stage = Stage::sharded;
    request.explains = false;
    return forecast_of(request);
  };
  EXPECT_EQ(planned("8h200-8gen5", 0).ranks, 8u);
  EXPECT_EQ(planned("cpu-2core", 0).ranks, 1u);
  const Forecast four = planned("8h200-8gen5", 4);
  EXPECT_EQ(four.ranks, 4u);
  EXPECT_EQ(four.budget_bytes(Tier::host), four.request.budgets.host_bytes / 4);
}

TEST(PlanOfRanks, HaveAllTheRoomThereIsWhereOneDriveDoesNotSayItsOwn) {
  ForecastRequest request = ranks_of("8h200-8gen5", 8);
  request.stage = Stage::sharded;
  request.explains = false;
  EXPECT_LT(usual_budgets(request.machine).nvme_bytes, Budgets().nvme_bytes);
  for (DriveRates& drive : request.machine.drives) {
    const uint64_t capacity_bytes = std::exchange(drive.capacity_bytes, 0);
    EXPECT_EQ(usual_budgets(request.machine).nvme_bytes, Budgets().nvme_bytes) << drive.path;
    drive.capacity_bytes = capacity_bytes;
  }
  request.machine.drives.front().capacity_bytes = 0;
  const Forecast result = forecast_of(request);
  EXPECT_EQ(forecast_json(result)["budget_bytes"]["nvme"], "unbounded");
  EXPECT_NE(forecast_text(result).find("unbounded"), std::string::npos);
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

TEST(PlanOfRanks, RefuseWhatTrainingRefusesInItsWords) {
  ForecastRequest space = ranks_of("cpu-2core", 2), base = space;
  space.slots = 1;
  base.adapters = AdapterShape{.rank = 8, .base_code = BlockCode::nf4};
  const std::pair<ForecastRequest, const char*> refused[] = {
      {space, "ranks: one slot a tile: a step of some ranks could not be taken back"},
      {base, "ranks: unit block0: frozen weights in int8 or NF4 are not implemented for several ranks"}};
  for (auto [request, words] : refused) {
    const Result<Forecast> several = forecast(request);
    ASSERT_FALSE(several.ok()) << words;
    EXPECT_EQ(several.status().code(), Code::kUsage);
    EXPECT_EQ(several.status().message().find(words), 0u) << several.status().message();
    request.ranks = 1;
    EXPECT_TRUE(forecast(request).ok()) << words;
  }
}

// A rank has (N-1)/N of the weights to take for each time that they are gathered, and as much of the gradients to add
// up; where it has all weights, it takes what the others have added up, too.
TEST(PlanOfRanks, SendsWhatTheStageNeeds) {
  ForecastRequest request = ranks_of("cpu-2core", 4);
  request.choices.micro_batch_group = request.micro_batches = 4;
  request.stage = Stage::sharded;
  const Forecast result = forecast_of(request);
  ASSERT_EQ(result.stages.size(), 3u);
  const ModelShape& shape = request.shape;
  const auto all = 2.0 * static_cast<double>(shape.parameters());
  // The last use is come to once for both directions, and has the embedding's weights besides its own.
  const double passes = 2 * all + 2.0 * static_cast<double>(shape.embedding_parameters());
  const std::pair<Stage, double> expected[] = {
      {Stage::replicated, 2 * all}, {Stage::states, all + all}, {Stage::sharded, passes + all}};
  for (const auto& [stage, bytes] : expected) {
    const auto found = std::ranges::find(result.stages, stage, &StageForecast::stage);
    ASSERT_NE(found, result.stages.end());
    EXPECT_TRUE(found->fits);
    EXPECT_NEAR(static_cast<double>(found->sent_bytes), 0.75 * bytes, 0.01 * bytes) << name_of(stage);
  }
}

TEST(PlanOfRanks, AreInTheFastestStageThatFits) {
  for (const char* machine : {"cpu-2core", "8h200-8gen5"}) {
    const Forecast chosen = forecast_of(ranks_of(machine, 2));
    ASSERT_TRUE(chosen.fits);
    EXPECT_EQ(chosen.stages.size(), 3u);
    for (const StageForecast& stage : chosen.stages) {
      EXPECT_TRUE(!stage.fits || chosen.times.step_s <= 1.001 * stage.step_s) << name_of(stage.stage);
      ForecastRequest given = ranks_of(machine, 2);
      given.stage = stage.stage;
      given.explains = false;
      EXPECT_EQ(forecast_of(given).times.step_s, stage.step_s) << name_of(stage.stage);
    }
  }
}

// All state is written by every rank in stage 0, which bounds the step; links that are slow make weights expensive.
TEST(PlanOfRanks, ChooseByDrivesLinksAndMemory) {
  ForecastRequest request = ranks_of("8h200-8gen5", 8);
  request.machine.device_flops *= 100;
  EXPECT_NE(forecast_of(request).stage, Stage::replicated);
  ForecastRequest slow = ranks_of("8h200-8gen5", 8);
  slow.micro_batches = 2;
  slow.choices.micro_batch_group = 1;
  slow.machine.collective_gbps = 1;
  EXPECT_NE(forecast_of(slow).stage, Stage::sharded);
  // The least of a device's memory that sharded weights need does not hold all weights.
  slow.budgets.device_bytes = kMiB;
  slow.explains = false;
  const Forecast refused = forecast_of(slow);
  ASSERT_FALSE(refused.fits);
  slow.budgets.device_bytes = refused.needed_bytes(Tier::device);
  EXPECT_EQ(forecast_of(slow).stage, Stage::sharded);
}

// Writing wears drives, reading does not, and memory that is free costs nothing.
TEST(PlanOfRanks, OfEquallyFastStagesChooseTheOneThatWritesLess) {
  auto merit = [](double step_s, double written, double read, uint64_t memory) {
    return StageMerit{
        .fits = true, .step_s = step_s, .written_bytes = written, .read_bytes = read, .memory_bytes = memory};
  };
  const StageMerit usual = merit(1, 10, 10, 10);
  EXPECT_TRUE(goes_before(merit(0.9, 99, 99, 99), usual));
  EXPECT_TRUE(goes_before(merit(1.0005, 9, 99, 99), usual));
  EXPECT_TRUE(goes_before(merit(1.0005, 10, 9, 99), usual));
  EXPECT_TRUE(goes_before(merit(1.0005, 10, 10, 9), usual));
  EXPECT_FALSE(goes_before(merit(1, 11, 9, 9), usual));
  EXPECT_FALSE(goes_before(merit(1.1, 0, 0, 0), usual));
  EXPECT_FALSE(goes_before(StageMerit(), usual));
}

TEST(PlanOfRanks, SayWhichStageIsChosenAndWhatTheOthersTake) {
  const Forecast result = forecast_of(ranks_of("cpu-2core", 2));
  const auto json = forecast_json(result);
  EXPECT_EQ(json["stage"], name_of(result.stage));
  ASSERT_EQ(json["state_by_zero_stage"].size(), 3u);
  const std::string printed = forecast_text(result);
  for (const auto& stage : json["state_by_zero_stage"]) {
    EXPECT_TRUE(stage["fits"]);
    EXPECT_GT(stage["sent_bytes"], 0u);
    EXPECT_EQ(stage["planned"], stage["stage"] == json["stage"]);
    EXPECT_NE(printed.find(bytes_text(stage["sent_bytes"])), std::string::npos) << printed;
    if (stage["planned"]) {
      EXPECT_EQ(stage["step_s"], json["step_s"]);
    }
  }
  EXPECT_NE(printed.find(std::string(name_of(result.stage)) + ", as planned"), std::string::npos) << printed;
  EXPECT_TRUE(forecast_json(forecast_of(ranks_of("cpu-2core", 1)))["stage"].is_null());
}

TEST(PlanOfRanks, HaveNoStageWhereThereIsOne) {
  ForecastRequest request = ranks_of("cpu-2core", 1);
  request.stage = Stage::states;
  EXPECT_EQ(forecast(request).status().code(), Code::kUsage);
}

// What does not fit in the stage that was asked for fits in another, and the remedy says so.
TEST(PlanOfRanks, OfferAnotherStageWhereTheGivenOneDoesNotFit) {
  ForecastRequest request = ranks_of("cpu-2core", 4);
  request.stage = Stage::sharded;
  uint64_t enough = forecast_of(request).needed_bytes(Tier::nvme);
  request.stage = Stage::replicated;
  request.budgets.nvme_bytes = 5 * enough;
  const Forecast refused = forecast_of(request);
  EXPECT_FALSE(refused.fits);
  EXPECT_NE(refused.remedy.find("--stage auto"), std::string::npos) << refused.remedy;
  request.stage.reset();
  EXPECT_TRUE(forecast_of(request).fits);
}

TEST(PlanOfRanks, SaysWhatCodesSave) {
  ForecastRequest request = ranks_of("cpu-2core", 2);
  request.stage = Stage::sharded;
  const Forecast exact = forecast_of(request);
  request.codes = {.weights = true, .gradients = true};
  const Forecast coded = forecast_of(request);
  ASSERT_TRUE(exact.fits && coded.fits);
  ASSERT_EQ(coded.stages.size(), 2u) << "stage 0 gathers no weights";
  const StageForecast &before = exact.stages.front(), &now = coded.stages.front();
  ASSERT_EQ(now.stage, Stage::sharded);
  EXPECT_EQ(before.sent_bytes - now.sent_bytes, coded.gathered_bytes_saved + coded.reduced_bytes_saved);
  // 17 of 32 bytes are left of weights, 9 of 32 of gradients.
  const auto saved = static_cast<double>(coded.gathered_bytes_saved);
  EXPECT_NEAR(saved, 15.0 / 32 * static_cast<double>(collective_bytes(*exact.plan, MoveKind::gather)), 0.01 * saved);
  EXPECT_NEAR(static_cast<double>(collective_bytes(*coded.plan, MoveKind::reduce)),
              9.0 / 32 * static_cast<double>(collective_bytes(*exact.plan, MoveKind::reduce)), 0.01 * saved);
  EXPECT_LT(coded.lane_busy_s(Lane::collective), 0.6 * exact.lane_busy_s(Lane::collective));
  EXPECT_EQ(forecast_json(coded)["codes"]["gathered_bytes_saved"], coded.gathered_bytes_saved);
  EXPECT_EQ(forecast_json(coded)["codes"]["gradients"], "int4");
  EXPECT_TRUE(forecast_json(exact)["codes"].is_null());
  const std::string line = text("codes: weights in int8, gradients in int4: a rank sends ",
                                bytes_text(coded.gathered_bytes_saved), " of weights, ");
  EXPECT_NE(forecast_text(coded).find(line), std::string::npos) << forecast_text(coded);
  EXPECT_EQ(forecast_text(exact).find("codes:"), std::string::npos);
}

TEST(PlanOfRanks, RefuseCodesOfWhatIsNotSent) {
  auto remedy = [](const char* machine, uint32_t ranks, RankCodes codes, std::optional<Stage> stage) {
    ForecastRequest request = ranks_of(machine, ranks);
    request.codes = codes;
    request.stage = stage;
    return forecast(request).status().remedy();
  };
  const RankCodes weights{.weights = true}, gradients{.gradients = true};
  EXPECT_EQ(remedy("cpu-2core", 1, weights, {}), "--ranks 2 with it, or leave --quantized-weights out");
  EXPECT_EQ(remedy("8h200-8gen5", 1, gradients, {}), "leave --quantized-gradients out");
  EXPECT_EQ(remedy("cpu-2core", 2, weights, Stage::replicated), "--stage 3 with it, or leave --quantized-weights out");
}

}  // namespace
}  // namespace penstock::tools
