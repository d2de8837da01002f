// What a forecast prints: the table of state by role and tier, ZeRO's stages, the trace of moves, and a manual page
// that explains every line.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/tools/forecasts.h"
#include "tools/penstock/quantity.h"
#include "tools/plan/advice.h"
#include "tools/plan/forecast_text.h"
#include "tools/plan/held_state.h"
#include "tools/plan/output_words.h"
#include "tools/plan/trace.h"

namespace penstock::tools {
namespace {

ForecastRequest request_for(const std::string& model, const std::string& machine, uint64_t tokens = 8192) {
  return clipped_step_of(model, machine, tokens);
}

double all_of(const Forecast& result, Role role) {
  for (const HeldRole& held : held_state(result)) {
    if (held.role == role) return held.bytes[0] + held.bytes[1] + held.bytes[2];
  }
  return 0;
}

TEST(HeldState, IsWhatTheOptimizerKeepsOfEachParameterWhereverItRests) {
  for (const double host_share : {0.0, 0.5, 1.0}) {
    for (const char* machine : {"cpu-2core", "8h200-8gen5"}) {
      ForecastRequest request = request_for("gpt2", machine);
      request.choices.host_state_share = host_share;
      const Forecast result = forecast_of(request);
      ASSERT_TRUE(result.fits) << machine;
      // Shards are rounded up to whole elements, in each of the model's units.
      const auto parameters = static_cast<double>(request.shape.parameters());
      EXPECT_NEAR(all_of(result, Role::weight) / parameters, 2, 1e-5) << machine;
      EXPECT_NEAR(all_of(result, Role::master_low) / parameters, 2, 1e-5) << machine;
      EXPECT_NEAR(all_of(result, Role::momentum) / parameters, 4, 1e-5) << machine;
      EXPECT_NEAR(all_of(result, Role::variance) / parameters, 4, 1e-5) << machine;
      double on_host = 0;
      for (const HeldRole& held : held_state(result)) {
        if (held.role == Role::variance) on_host = held.bytes_of(Tier::host) / parameters / 4;
      }
      EXPECT_NEAR(on_host, host_share, 0.06) << machine;
    }
  }
}

TEST(HeldState, OfAdaptersOverCodesIsTheCodesTheirScalesAndTheAdaptersOwn) {
  ForecastRequest request = request_for("gpt2", "rtx4090-2gen4");
  request.adapters = AdapterShape{.rank = 16, .base_code = BlockCode::nf4};
  const Forecast result = forecast_of(request);
  ASSERT_TRUE(result.fits);
  const auto trained = static_cast<double>(request.shape.layers * request.shape.block_adapter_parameters(16));
  EXPECT_NEAR(all_of(result, Role::momentum) / trained, 4, 1e-3);
  const ModelShape& shape = request.shape;
  const auto coded = static_cast<double>(shape.layers * (shape.block_parameters() - shape.block_vector_parameters()));
  EXPECT_NEAR(all_of(result, Role::weight_scale) / coded, 4.0 / kCodeBlockElements, 1e-4);
  const double others = static_cast<double>(shape.parameters()) - coded;
  EXPECT_NEAR(all_of(result, Role::weight) / (coded / 2 + 2 * (others + trained)), 1, 1e-3);
}

TEST(HeldState, ByStageRanksHoldLess) {
  EXPECT_TRUE(held_by_stage(forecast_of(request_for("gpt2", "cpu-2core"))).empty());
  ForecastRequest request = request_for("gpt2", "8h200-8gen5");
  request.stage = Stage::sharded;
  const auto stages = held_by_stage(forecast_of(request));
  ASSERT_EQ(stages.size(), 3u);
  const auto parameters = static_cast<double>(request.shape.parameters());
  const double expected[] = {12, 2 + 10.0 / 8, 12.0 / 8};
  for (size_t i = 0; i < stages.size(); ++i) {
    EXPECT_NEAR(stages[i].rank_bytes / parameters, expected[i], 1e-3) << name_of(stages[i].stage);
    EXPECT_EQ(stages[i].is_planned, i == 2);
  }
}

// Of the lanes that carry several moves at once there are several rows: what lies on one row must not overlap.
TEST(Trace, HoldsEveryMoveOfTheSimulatedStepsOnRowsOfItsLane) {
  ForecastRequest request = request_for("gpt2", "rtx4090-2gen4");
  request.choices.host_state_share = 0;
  request.record_spans = true;
  const Forecast result = forecast_of(request);
  const std::string written =
      chrome_trace(*result.plan, result.rank_request.workload.units, result.simulation, "a \"title\"\n");
  const auto trace = nlohmann::json::parse(written);
  std::map<uint64_t, std::string> row_names;
  std::map<uint64_t, double> row_ends_us;
  std::map<std::string, double> busy_us;
  size_t moves = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") row_names[event["tid"]] = event["args"]["name"];
  }
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const uint64_t row = event["tid"];
    ASSERT_TRUE(row_names.contains(row));
    const double begin_us = event["ts"], took_us = event["dur"];
    EXPECT_GE(begin_us, row_ends_us[row] - 0.002) << row_names[row];
    row_ends_us[row] = begin_us + took_us;
    if (row_names[row].starts_with("steps")) continue;
    ++moves;
    const Move& move = result.plan->moves[event["args"]["move"].get<MoveId>()];
    EXPECT_EQ(event["name"], name_of(move.kind));
    EXPECT_TRUE(row_names[row].starts_with(name_of(move.lane)));
    busy_us[name_of(move.lane)] += took_us;
  }
  size_t on_lanes = 0;
  for (const SimulatedSpan& span : result.simulation.spans)
    on_lanes += result.plan->moves[span.move].lane != Lane::none;
  EXPECT_EQ(moves, on_lanes);
  // A lane that carries one move at a time.
  const double computed_s = result.simulation.busy_s[static_cast<size_t>(Lane::compute)];
  EXPECT_NEAR(busy_us["compute"] * 1e-6, computed_s, 0.01 * computed_s);
}

std::string unexplained(const Forecast& result, const std::string& printed) {
  std::istringstream lines(printed);
  for (std::string line; std::getline(lines, line);) {
    line.erase(0, line.find_first_not_of(' '));
    if (line.starts_with(result.request.shape.name + ":")) line.replace(0, result.request.shape.name.size(), "MODEL");
    if (line.starts_with(result.request.machine.name + ":")) {
      line.replace(0, result.request.machine.name.size(), "MACHINE");
    }
    for (Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
      const std::string name = text(penstock::name_of(tier), "  ");
      if (line.starts_with(name)) line.erase(0, line.find_first_not_of(' ', name.size()));
    }
    const auto& words = words_of_forecasts();
    const bool is_explained =
        std::ranges::any_of(words, [&](const OutputWord& word) { return line.starts_with(word.line); });
    if (!line.empty() && line != "role" && !line.starts_with("role ") && !is_explained) return line;
  }
  return "";
}

TEST(ManualOfPlan, ExplainsEveryLineThatAForecastPrints) {
  std::vector<ForecastRequest> requests{request_for("gpt2", "cpu-2core"), request_for("gpt2", "rtx4090-2gen4"),
                                        request_for("gpt2", "8h200-8gen5")};
  for (const char* machine : {"cpu-2core", "rtx4090-2gen4"}) {
    requests.push_back(request_for("gpt2", machine));
    requests.back().choices.retained_host_share = 0;
    requests.back().choices.host_state_share = 0;
    requests.back().choices.weights = WeightTier::nvme;
    requests.back().choices.activations = ActivationChoice::offload;
    requests.back().choices.offload_host_share = 0;
    if (requests.back().machine.devices == 0) requests.back().choices.activations = ActivationChoice::recompute;
    requests.back().clipping.strike_share = 0.5;
    requests.push_back(request_for("gpt2", machine));
    requests.back().durability = Durability{Durability::Kind::exit, 1};
    requests.back().choices.host_state_share = 1;
    requests.back().slots = 1;
    requests.push_back(request_for("gpt2", machine));
    requests.back().adapters = AdapterShape{.rank = 8, .base_code = BlockCode::int8};
    requests.push_back(request_for("gpt2", machine));
    requests.back().form = {.master = MasterForm::full, .moments = MomentForm::int8};
    requests.push_back(request_for("gpt2", machine));
    requests.back().budgets.host_bytes = 600 * kMiB;
  }
  requests.push_back(request_for("gpt2", "cpu-2core"));
  requests.back().ranks = requests.back().nodes = 2;
  bool all_fit = true;
  for (const ForecastRequest& request : requests) {
    Result<Forecast> result = forecast(request);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(unexplained(*result, forecast_text(*result)), "") << forecast_text(*result);
    all_fit &= result->fits;
  }
  EXPECT_FALSE(all_fit);
  const ForecastRequest request = request_for("gpt2", "8h200-8gen5");
  const Forecast usual = forecast_of(request);
  const Result<Advice> advice = advise(request, usual, {.changes = true, .step_s = 0.001, .drive_life_days = 10},
                                       [](double, const std::string&) {});
  ASSERT_TRUE(advice.ok());
  EXPECT_EQ(unexplained(usual, advice_text(*advice, usual)), "");
}

}  // namespace
}  // namespace penstock::tools
