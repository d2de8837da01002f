// What ranks move among one another, in a forecast.
#include "tiering/plan/collective_moves.h"

#include <gtest/gtest.h>

#include "tests/support/random_plans.h"
#include "tiering/plan/simulator.h"
#include "tiering/plan/visits.h"

namespace penstock {
namespace {

constexpr uint64_t kGathered = 30'000'000, kReduced = 20'000'000;

std::vector<VisitTraffic> traffic_of(const Plan& plan) {
  const std::vector<uint32_t> visits = visits_of(plan);
  std::vector<VisitTraffic> traffic(visits.empty() ? 0 : visits.back() + 1);
  for (size_t i = 0; i < visits.size(); ++i) {
    traffic[visits[i]].gathered_bytes = kGathered;
    if (plan.computes[i].direction == Direction::backward) traffic[visits[i]].reduced_bytes = kReduced;
  }
  return traffic;
}

TEST(CollectiveMoves, LeaveAPlanThatKeepsItsRules) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(text("seed ", seed));
    std::mt19937_64 random(seed);
    PlanRequest request = test::random_request(random);
    request.workload.ranks = 1;
    request.workload.scope = StepScope::training;
    request.machine.collective_gbps = 10;
    const Result<Plan> plan = make_plan(request);
    if (!plan.ok()) continue;
    const std::vector<VisitTraffic> traffic = traffic_of(*plan);
    const Plan forecast = with_collectives(*plan, traffic, visits_ahead(*plan));
    const Status status = validate(forecast);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(collective_bytes(forecast, MoveKind::gather), traffic.size() * kGathered);
    EXPECT_EQ(forecast.read_bytes(), plan->read_bytes());
    EXPECT_EQ(forecast.written_bytes(), plan->written_bytes());
    const Simulation with = simulate(forecast, request.machine, {}), without = simulate(*plan, request.machine, {});
    const auto bytes = static_cast<double>(collective_bytes(forecast, MoveKind::gather) +
                                           collective_bytes(forecast, MoveKind::reduce));
    EXPECT_NEAR(with.busy_s[static_cast<size_t>(Lane::collective)], 4 * bytes / 10e9, 1e-6);
    EXPECT_GE(with.step_s, without.step_s * 0.999);
  }
}

// A visit computes for 4 and 8 ms, a gather takes 3 ms and a reduction 2.
TEST(CollectiveMoves, HideBehindTheVisitBefore) {
  PlanRequest request;
  for (uint32_t i = 0; i < 6; ++i) {
    request.workload.units.push_back({.name = text("unit", i), .elements = kBlockElements, .parameters = {}});
  }
  request.workload.uses = uses_in_turn(request.workload.units);
  for (Use& use : request.workload.uses) {
    use.forward_s = 4e-3;
    use.backward_s = 8e-3;
  }
  request.workload.scope = StepScope::training;
  request.machine = test::test_machine(false);
  request.machine.collective_gbps = 10;
  request.budgets.host_bytes = kGiB;
  request.choices.weights = WeightTier::host;
  const Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const std::vector<VisitTraffic> traffic = traffic_of(*plan);
  const double alone_s = simulate(*plan, request.machine, {}).step_s;
  const double ahead_s = simulate(with_collectives(*plan, traffic, visits_ahead(*plan)), request.machine, {}).step_s;
  const std::vector<bool> none(traffic.size());
  const double after_s = simulate(with_collectives(*plan, traffic, none), request.machine, {}).step_s;
  // The first gather and the last reduction hide behind nothing; the updates behind that share the CPU with less.
  EXPECT_LT(ahead_s, alone_s + 10e-3);
  EXPECT_GT(after_s, alone_s + 40e-3);
}

}  // namespace
}  // namespace penstock
