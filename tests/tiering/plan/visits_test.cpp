// Which weights may be gathered while the pass before is computed.
#include "tiering/plan/visits.h"

#include <gtest/gtest.h>

#include "tests/support/random_plans.h"

namespace penstock {
namespace {

PlanRequest chain(uint32_t micro_batches, uint32_t group) {
  PlanRequest request;
  for (uint32_t i = 0; i < 4; ++i) {
    request.workload.units.push_back({.name = text("unit", i), .elements = 4 * kBlockElements, .parameters = {}});
  }
  request.workload.uses = uses_in_turn(request.workload.units);
  request.workload.scope = StepScope::training;
  request.workload.micro_batches = micro_batches;
  request.machine = test::test_machine(false);
  request.budgets.host_bytes = kGiB;
  request.choices.tile_elements = kBlockElements;
  request.choices.weights = WeightTier::nvme;
  request.choices.host_state_share = 0;
  request.choices.micro_batch_group = group;
  return request;
}

Plan plan_of(const PlanRequest& request) {
  Result<Plan> plan = make_plan(request);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return std::move(*plan);
}

TEST(Visits, AreOfAllMicroBatchesThatPassTogetherAndOfTheTurn) {
  EXPECT_EQ(visits_of(plan_of(chain(1, 1))), (std::vector<uint32_t>{0, 1, 2, 3, 3, 4, 5, 6}));
  EXPECT_EQ(visits_of(plan_of(chain(2, 2))), (std::vector<uint32_t>{0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 5, 5, 6, 6}));
  EXPECT_EQ(visits_of(plan_of(chain(2, 1))),
            (std::vector<uint32_t>{0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10, 10, 11, 12, 13}));
}

TEST(Visits, AreAheadWhereThePlanHasRoomForTheNextUnit) {
  for (uint32_t group : {1, 2}) {
    const std::vector<bool> ahead = visits_ahead(plan_of(chain(2, group)));
    EXPECT_FALSE(ahead.front());
    EXPECT_EQ(std::count(ahead.begin(), ahead.end(), true), static_cast<std::ptrdiff_t>(ahead.size()) - 1);
  }
}

// One unit arrives when the one before has left, and that waits for its update.
TEST(Visits, AreNotAheadWhereMemoryIsShort) {
  PlanRequest request = chain(2, 2);
  uint64_t fits = request.budgets.host_bytes;
  for (uint64_t less = fits / 2; less > kMiB; less /= 2) {
    request.budgets.host_bytes = fits - less;
    if (make_plan(request).ok()) fits -= less;
  }
  request.budgets.host_bytes = fits;
  const std::vector<bool> ahead = visits_ahead(plan_of(request));
  EXPECT_LT(std::count(ahead.begin(), ahead.end(), true), static_cast<std::ptrdiff_t>(ahead.size()) - 1);
}

// What is told to come ahead waits for nothing that comes later, by the plan's own lists.
TEST(Visits, ThatAreAheadWaitForNoPassOfTheVisitBefore) {
  uint64_t any_ahead = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    PlanRequest request = test::random_request(random);
    request.workload.ranks = 1;
    request.workload.scope = StepScope::training;
    const Result<Plan> plan = make_plan(request);
    if (!plan.ok()) continue;
    const std::vector<uint32_t> visits = visits_of(*plan);
    const std::vector<bool> ahead = visits_ahead(*plan);
    for (size_t i = 0; i < visits.size(); ++i) {
      if (!ahead[visits[i]]) continue;
      ++any_ahead;
      for (const Compute::Weights& weights : plan->computes[i].weights) {
        if (weights.brought_by == kNoMove) continue;
        std::vector<bool> waited_for(plan->moves.size());
        waited_for[weights.brought_by] = true;
        for (MoveId id = weights.brought_by + 1; id-- > 0;) {
          for (MoveId before : plan->moves[id].after) {
            if (waited_for[id]) waited_for[before] = true;
          }
        }
        for (size_t other = 0; other < visits.size(); ++other) {
          const bool is_late = visits[other] + 1 >= visits[i];
          EXPECT_FALSE(is_late && waited_for[plan->computes[other].move]) << "seed " << seed << ", pass " << i;
        }
      }
    }
  }
  EXPECT_GT(any_ahead, 100u);
}

}  // namespace
}  // namespace penstock
