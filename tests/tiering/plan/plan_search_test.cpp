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
  request.workload.pass = Pass::update_only;
  request.machine.host_gbps = 60;
  request.machine.drives.resize(1);
  request.machine.drives[0].burst = MixCurve({{0, 4}, {1, 3.5}});
  request.budgets.host_bytes = 64 * kMiB;
  request.choices.tile_elements = kBlockElements;
  request.choices.weights = WeightRest::host;
  request.choices.host_state_share = 0.5;
  request.durability.reset();
  return request;
}

TEST(DecideDurability, CostsAtMostThreePercentAndIsNoRarerThanThat) {
  const PlanRequest decided = decide_durability(half_in_host());
  ASSERT_EQ(decided.durability->kind, Durability::Kind::every);
  const Result<Plan> plan = make_plan(decided);
  ASSERT_TRUE(plan.ok());
  const DurabilityCost cost = durability_cost(*plan, decided.machine, {});
  const double steps = decided.durability->steps;
  EXPECT_LE(cost.extra_s() / steps, 0.03 * cost.other_s);
  EXPECT_GT(cost.extra_s() / (steps - 1), 0.03 * cost.other_s);
}

TEST(DecideDurability, KeepsWhatIsGiven) {
  PlanRequest request = half_in_host();
  request.durability = Durability{Durability::Kind::every, 5};
  EXPECT_EQ(text_of(*decide_durability(request).durability), "every:5");
  request.durability = Durability{Durability::Kind::exit, 1};
  EXPECT_EQ(text_of(*decide_durability(request).durability), "exit");
}

TEST(DecideDurability, IsEveryStepWhereAllIsWrittenAnyway) {
  PlanRequest request = half_in_host();
  request.choices.host_state_share = 0;
  EXPECT_EQ(text_of(*decide_durability(request).durability), "step");
}

TEST(DecideDurability, IsEveryStepWhereRelaxingWouldCostSpeculation) {
  PlanRequest request = half_in_host();
  request.workload.clipping.on = true;
  EXPECT_EQ(decide_durability(request).durability->kind, Durability::Kind::every);  // a new store gets a third slot
  request.slots = 2;
  EXPECT_EQ(text_of(*decide_durability(request).durability), "step");
  request.slots = 0;
  request.budgets.nvme_bytes = make_plan(decide_durability(half_in_host()))->needed_bytes(Tier::nvme);
  EXPECT_EQ(text_of(*decide_durability(request).durability), "step");  // no space for it
}

}  // namespace
}  // namespace penstock
