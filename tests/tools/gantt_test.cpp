// A plan's moves as a picture that stays small.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tools/forecasts.h"
#include "tools/plan/gantt.h"

namespace penstock::tools {
namespace {

// Half a million moves whose kinds take turns, on every lane.
TEST(Gantt, HasNoMoreBarsThanColumnsHoweverManyMovesThereAre) {
  ForecastRequest request = large_step_of("gpt2", "rtx4090-2gen4");
  request.record_spans = true;
  const Forecast result = forecast_of(request);
  Simulation busy = result.simulation;
  const auto moves = static_cast<MoveId>(result.plan->moves.size());
  const double shown_s = 1.75 * busy.step_s, from_s = busy.steps[busy.steps.size() / 2].begin_s - 0.25 * busy.step_s;
  busy.spans.clear();
  constexpr uint64_t kMany = 500'000;
  for (uint64_t i = 0; i < kMany; ++i) {
    const double at_s = from_s + shown_s * static_cast<double>(i) / kMany;
    busy.spans.push_back({busy.steps.size() / 2, static_cast<MoveId>(i * 7919 % moves), at_s, at_s + shown_s / kMany});
  }
  EXPECT_LT(gantt_svg(*result.plan, busy, "busy").size(), 1'000'000u);
}

// Kinds that take turns faster than a column is wide: one has three quarters of each turn.
TEST(Gantt, AColumnHasTheColourOfWhatTakesMostOfIt) {
  ForecastRequest request = large_step_of("gpt2", "rtx4090-2gen4");
  request.record_spans = true;
  const Forecast result = forecast_of(request);
  const std::vector<Move>& moves = result.plan->moves;
  const SimulatedStep& shown = result.simulation.steps[result.simulation.steps.size() / 2];
  auto drawn_where_most_is = [&](MoveKind most, MoveKind rest) {
    constexpr uint64_t kTurns = 20'000;
    Simulation busy = result.simulation;
    busy.spans.clear();
    double at_s = shown.begin_s;
    for (uint64_t turn = 0; turn < kTurns; ++turn) {
      for (const auto& [kind, share] : {std::pair{most, 0.75}, {rest, 0.25}}) {
        const auto move = static_cast<MoveId>(std::ranges::find(moves, kind, &Move::kind) - moves.begin());
        const double end_s = at_s + share * busy.step_s / kTurns;
        busy.spans.push_back({busy.steps.size() / 2, move, at_s, end_s});
        at_s = end_s;
      }
    }
    return gantt_svg(*result.plan, busy, "busy");
  };
  const MoveKind forward = MoveKind::forward, backward = MoveKind::backward;
  for (const auto& [most, rest] : {std::pair{forward, backward}, {backward, forward}}) {
    const std::string svg = drawn_where_most_is(most, rest);
    EXPECT_NE(svg.find(text("<title>", name_of(most), ", step ")), std::string::npos);
    EXPECT_EQ(svg.find(text("<title>", name_of(rest), ", step ")), std::string::npos);
  }
}

TEST(Gantt, ShowsEveryLaneThatIsBusy) {
  ForecastRequest request = large_step_of("gpt2", "rtx4090-2gen4");
  request.choices.host_state_share = 0;
  request.choices.weights = WeightTier::nvme;
  request.record_spans = true;
  const Forecast result = forecast_of(request);
  const std::string svg = gantt_svg(*result.plan, result.simulation, "gpt2\x1b <on> a desktop");
  for (const char* part : {"<svg", "nvme_read", "nvme_write", "update", "compute", "host_to_device", "device_to_host",
                           "gpt2? &lt;on&gt;", "begins", "</svg>"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
  EXPECT_LT(svg.size(), 2'000'000u);
}

}  // namespace
}  // namespace penstock::tools
