// What the search over plans decides on its own.
#include "tiering/plan/plan_search.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

PlanRequest half_in_host() {
  PlanRequest request;
  for (int unit = 0; unit < 8; ++unit) {
    request.workload.units.push_back({.name = text("unit", unit), .elements = 4 * kBlockElements, .parameters = {}});
  }
  request.workload.scope = StepScope::update_only;
  request.machine.host_gbps = 60;
  request.machine.drives.resize(1);
  request.machine.drives[0].burst = MixCurve({{0, 4}, {1, 3.5}});
  request.budgets.host_bytes = 64 * kMiB;
  request.choices.tile_elements = kBlockElements;
  request.choices.weights = WeightTier::host;
  request.choices.host_state_share = 0.5;
  request.durability.reset();
  return request;
}

Durability chosen_durability(const PlanRequest& request) {
  const Result<ChosenPlan> chosen = choose_plan(request);
  EXPECT_TRUE(chosen.ok()) << chosen.status().message();
  return chosen.ok() ? chosen->plan.durability : Durability{};
}

TEST(ChosenDurability, CostsAtMostThreePercentAndIsNoRarerThanThat) {
  const Result<ChosenPlan> chosen = choose_plan(half_in_host());
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  ASSERT_EQ(chosen->plan.durability.kind, Durability::Kind::every);
  const double extra_s = chosen->durable.step_s - chosen->other.step_s, steps = chosen->plan.durability.steps;
  EXPECT_LE(extra_s / steps, 0.03 * chosen->other.step_s);
  EXPECT_GT(extra_s / (steps - 1), 0.03 * chosen->other.step_s);
  EXPECT_NEAR(chosen->step_s(), chosen->other.step_s + extra_s / steps, 1e-12);
}

TEST(ChosenDurability, IsWhatIsGiven) {
  PlanRequest request = half_in_host();
  request.durability = Durability{Durability::Kind::every, 5};
  EXPECT_EQ(text_of(chosen_durability(request)), "every:5");
  request.durability = Durability{Durability::Kind::exit, 1};
  EXPECT_EQ(text_of(chosen_durability(request)), "exit");
}

TEST(ChosenDurability, IsWhatIsGivenWhereNoRatesAreKnown) {
  using Kind = Durability::Kind;
  for (Durability durability : {Durability{Kind::step, 1}, Durability{Kind::every, 3}, Durability{Kind::exit, 1}}) {
    PlanRequest request = half_in_host();
    request.machine = MachineProfile();
    request.durability = durability;
    const Result<ChosenPlan> chosen = choose_plan(request);
    ASSERT_TRUE(chosen.ok()) << chosen.status().message();
    EXPECT_EQ(chosen->plan.durability.kind, durability.kind);
    EXPECT_EQ(chosen->step_s(), 0);
    EXPECT_EQ(predicted_step_s(chosen->plan, request.machine), 0);
  }
}

TEST(ChosenDurability, IsEveryStepWhereAllIsWrittenAnyway) {
  PlanRequest request = half_in_host();
  request.choices.host_state_share = 0;
  EXPECT_EQ(text_of(chosen_durability(request)), "step");
}

TEST(ChosenDurability, IsEveryStepWhereRelaxingWouldCostSpeculation) {
  PlanRequest request = half_in_host();
  request.workload.clipping.norm = 1;
  const Result<ChosenPlan> chosen = choose_plan(request);  // a new store gets a third slot
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  EXPECT_EQ(chosen->plan.durability.kind, Durability::Kind::every);
  EXPECT_EQ(chosen->slots, 3u);
  request.slots = 2;
  EXPECT_EQ(text_of(chosen_durability(request)), "step");
  request.slots = 0;
  request.budgets.nvme_bytes = choose_plan(half_in_host())->plan.needed_bytes(Tier::nvme);
  EXPECT_EQ(text_of(chosen_durability(request)), "step");  // no space for it
}

}  // namespace
}  // namespace penstock
