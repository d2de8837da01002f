// Thousands of random models, budgets and fates: every plan keeps its rules, ends, and computes what a plain loop does.
#include <gtest/gtest.h>

#include <random>

#include "tests/support/instrumented.h"
#include "tests/support/plan_world.h"
#include "tiering/planner.h"
#include "tiering/simulator.h"

namespace penstock {
namespace {

MachineProfile test_machine(bool with_device) {
  MachineProfile machine;
  DriveRates drive;
  drive.burst = MixCurve({{0.0, 4.0}, {0.5, 3.8}, {1.0, 3.5}});
  machine.drives = {drive};
  machine.host_gbps = 60;
  if (with_device) {
    machine.devices = 1;
    machine.host_to_device_gbps = machine.device_to_host_gbps = 25;
    machine.collective_gbps = 100;
  }
  return machine;
}

PlanRequest random_request(std::mt19937_64& random) {
  auto up_to = [&](uint64_t n) { return random() % (n + 1); };
  PlanRequest request;
  Workload& work = request.workload;
  for (uint64_t i = 0, units = 1 + up_to(5); i < units; ++i) {
    Unit unit;
    unit.name = text("unit", i);
    unit.elements = 1 + up_to(6 * kBlockElements);
    unit.trainable = up_to(5) != 0;
    unit.forward_s = 1e-3;
    unit.backward_s = 2e-3;
    unit.activation_bytes = up_to(1) * 100'000;
    unit.boundary_bytes = unit.activation_bytes / 10;
    work.units.push_back(unit);
  }
  work.clipping.on = up_to(2) != 0;
  work.pass = up_to(1) ? Pass::training : Pass::update_only;
  work.micro_batches = 1 + static_cast<uint32_t>(up_to(3));
  work.ranks = up_to(2) == 0 ? 2 : 1;
  static constexpr OptimizerKind kKinds[] = {OptimizerKind::adamw, OptimizerKind::lion, OptimizerKind::sgd,
                                             OptimizerKind::adagrad};
  work.form.optimizer = kKinds[up_to(3)];
  static constexpr MomentForm kMoments[] = {MomentForm::fp32, MomentForm::bf16, MomentForm::int8};
  work.form.moments = kMoments[up_to(2)];
  request.machine = test_machine(up_to(1));
  const auto kind = static_cast<Durability::Kind>(up_to(2));
  request.durability = Durability{kind, 1 + static_cast<uint32_t>(up_to(2))};
  request.budgets.host_bytes = kMiB + up_to(48 * kMiB);
  request.budgets.device_bytes = up_to(40 * kMiB);
  if (up_to(2) == 0) request.choices.host_state_share = static_cast<double>(up_to(4)) / 4;
  if (up_to(2) == 0) request.choices.retained_host_share = static_cast<double>(up_to(4)) / 4;
  if (up_to(2) == 0) request.choices.weights = up_to(1) ? WeightRest::host : WeightRest::nvme;
  if (up_to(2) == 0) request.choices.window_tiles = 1 + static_cast<uint32_t>(up_to(5));
  if (up_to(2) == 0) request.choices.tile_elements = kBlockElements * (1 + up_to(3));
  if (up_to(2) == 0) request.choices.micro_batch_group = 1 + static_cast<uint32_t>(up_to(3));
  request.choices.activations = static_cast<ActivationChoice>(up_to(2));
  return request;
}

class RandomPlans : public testing::Test {
 protected:
  // Calls `check` with plans that fit until `count` did.
  template <typename Check>
  void for_each_plan(int count, Check check) {
    int refused = 0;
    for (uint64_t seed = 1; count > 0; ++seed) {
      std::mt19937_64 random(seed);
      PlanRequest request = random_request(random);
      Result<Plan> plan = make_plan(request);
      if (!plan.ok()) {
        EXPECT_EQ(plan.status().code(), Code::kDoesNotFit) << plan.status().message() << " seed " << seed;
        ASSERT_LT(++refused, 20000);
        continue;
      }
      SCOPED_TRACE(text("seed ", seed));
      check(request, *plan, random);
      if (HasFatalFailure() || HasNonfatalFailure()) return;
      --count;
    }
  }
};

TEST_F(RandomPlans, KeepTheirRulesAndTheirBudgets) {
  for_each_plan(2000, [](const PlanRequest& request, const Plan& plan, std::mt19937_64&) {
    Status status = validate(plan);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_LE(plan.needed_bytes(Tier::host), request.budgets.host_bytes);
    EXPECT_LE(plan.needed_bytes(Tier::device), request.budgets.device_bytes);
  });
}

TEST_F(RandomPlans, ComputeWhatAPlainLoopDoesInAnyOrderOfEnds) {
  uint64_t redone = 0, deferred = 0, read_twice = 0;
  for_each_plan(test::fewer(8000), [&](const PlanRequest& request, const Plan& plan, std::mt19937_64& random) {
    test::WorldOptions options;
    options.seed = random();
    options.slots = slots_per_tile(request);
    options.some_absent = random() % 2 == 0;
    options.gradients = static_cast<test::WorldOptions::Gradients>(random() % 3);
    for (uint64_t step = 0; step < options.steps; ++step) {
      options.verdicts.push_back(static_cast<Verdict>(random() % 3));
      options.speculate.push_back(random() % 3 != 0);
    }
    test::PlanWorld world(plan, options);
    EXPECT_EQ(world.run(), "") << to_text(plan).substr(0, 4000);
    // Only gradients that come in another order than planned can have a state read twice.
    if (options.gradients == test::WorldOptions::Gradients::as_planned) {
      EXPECT_LE(world.moves_issued(MoveKind::read_state), options.steps * plan.tiles.size());
    } else {
      read_twice += world.moves_issued(MoveKind::read_state) > options.steps * plan.tiles.size();
    }
    redone += world.moves_issued(MoveKind::update_again);
    deferred += world.moves_issued(MoveKind::return_gradient);
  });
  EXPECT_GT(redone, test::fewer(500));
  EXPECT_GT(deferred, test::fewer(500));
  EXPECT_GT(read_twice, 0u);
}

TEST_F(RandomPlans, EndInTheSimulatorAndMoveTheBytesTheyAnnounce) {
  for_each_plan(500, [](const PlanRequest& request, const Plan& plan, std::mt19937_64&) {
    SimulationOptions options;
    options.gradient_s = [](uint32_t) { return 1e-4; };
    Simulation simulation = simulate(plan, request.machine, options);
    EXPECT_GE(simulation.total_s, 0);
    for (uint32_t tile = 0; tile < plan.tiles.size(); ++tile) {
      // Such a gradient may or may not have left before the verdict.
      if (plan.placements[tile].state == Tier::host && plan.of_tile[tile].spill != kNoMove) return;
    }
    for (uint64_t step = 0; step < options.steps; ++step) {
      if (!plan.durability.durable_after(step)) continue;
      EXPECT_EQ(simulation.steps[step].read_bytes, plan.read_bytes());
      EXPECT_EQ(simulation.steps[step].written_bytes, plan.written_bytes());
    }
  });
}

TEST_F(RandomPlans, TakeAsLongForEachOfFourStepsAsOfMany) {
  for_each_plan(300, [](const PlanRequest& request, const Plan& plan, std::mt19937_64&) {
    if (plan.durability.kind != Durability::Kind::step) return;  // steps differ
    SimulationOptions options;
    const double few_s = simulate(plan, request.machine, options).step_s;
    options.steps = 24;
    const double many_s = simulate(plan, request.machine, options).step_s;
    EXPECT_NEAR(few_s, many_s, 0.01 * many_s);
  });
}

TEST(Planner, SaysWhatIsNeededAndWhatThereIs) {
  PlanRequest request;
  request.workload.units = {Unit{.name = "u", .elements = 1 << 20, .parameters = {}}};
  request.machine = test_machine(false);
  request.budgets.host_bytes = 100'000;
  Result<Plan> plan = make_plan(request);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), Code::kDoesNotFit);
  EXPECT_NE(plan.status().message().find("100000 B"), std::string::npos) << plan.status().message();
  EXPECT_NE(plan.status().remedy().find("--budget host="), std::string::npos);
}

// Each tile has its lines in the plan's books: of the smallest tiles, these alone would be 7 GiB.
TEST(Planner, FindsTheLargeTilesThatFitWhereSmallOnesDoNot) {
  PlanRequest request;
  request.workload.units.assign(80, Unit{.name = "u", .elements = 875'000'000, .parameters = {}});
  request.workload.clipping.on = true;
  request.machine = test_machine(false);
  request.budgets.host_bytes = 420 * kMiB;
  Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_LE(plan->needed_bytes(Tier::host), request.budgets.host_bytes);

  request.budgets.host_bytes = 300 * kMiB;
  plan = make_plan(request);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), Code::kDoesNotFit);
}

TEST(Planner, MovesTheFewestBytes) {
  PlanRequest request;
  const uint64_t elements = 1 << 24;
  request.workload.units = {Unit{.name = "u", .elements = elements, .parameters = {}}};
  request.machine = test_machine(false);
  request.budgets.host_bytes = kGiB;
  request.choices.host_state_share = 0;
  request.choices.weights = WeightRest::host;
  Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->read_bytes(), 10 * elements);
  EXPECT_EQ(plan->written_bytes(), 12 * elements);

  request.workload.units[0].forward_s = request.workload.units[0].backward_s = 1e-3;
  request.workload.pass = Pass::training;
  request.choices.weights = WeightRest::nvme;
  plan = make_plan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->read_bytes(), 14 * elements);
  EXPECT_EQ(plan->written_bytes(), 12 * elements);
}

// Embedding, blocks, and a head that is computed with the embedding's weights.
PlanRequest tied_request() {
  PlanRequest request;
  Workload& work = request.workload;
  work.units.assign(10,
                    Unit{.name = "u", .elements = 1 << 20, .parameters = {}, .forward_s = 1e-3, .backward_s = 2e-3});
  work.units.front().elements = 8 << 20;
  work.units.front().uses = 2;
  work.units.back().elements = 1 << 10;
  work.units.back().also_uses = 0;
  work.pass = Pass::training;
  work.micro_batches = 4;
  request.machine = test_machine(true);
  request.budgets = {kGiB, kGiB};
  return request;
}

TEST(Planner, ATiedGradientLeavesTheDeviceOnceForEachOfItsUses) {
  const PlanRequest request = tied_request();
  const Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  uint64_t lowered = 0;
  for (const Move& move : plan->moves) lowered += move.kind == MoveKind::lower_gradient ? move.bytes : 0;
  EXPECT_EQ(lowered, 2 * (request.workload.elements() + request.workload.units.front().elements));
}

TEST(Planner, OfATiedModelOnlyTheTiedSumLastsAllOfBackward) {
  PlanRequest request = tied_request();
  auto accumulated_sums = [&] {
    const Result<Plan> plan = make_plan(request);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plan.ok() ? plan->accumulated_bytes / accumulator_bytes(request.workload) : 0;
  };
  EXPECT_EQ(accumulated_sums(), 3u);  // and two of the others, one after another
  request.choices.micro_batch_group = 2;
  EXPECT_EQ(accumulated_sums(), 10u);
  request.choices.micro_batch_group.reset();
  request.workload.micro_batches = 1;
  EXPECT_EQ(accumulated_sums(), 1u);
}

TEST(Planner, UsesAllOfTheBudgetBeforeItReads) {
  PlanRequest request;
  const uint64_t elements = 1 << 24;
  request.workload.units = {Unit{.name = "u", .elements = elements, .parameters = {}}};
  request.machine = test_machine(false);
  request.budgets.host_bytes = 12 * elements + 256 * kMiB;
  Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->read_bytes(), 0u);
  EXPECT_EQ(plan->written_bytes(), 12 * elements);
}

TEST(Simulator, HidesTheUpdateBehindTheDrive) {
  PlanRequest request;
  const uint64_t elements = 1 << 28;
  request.workload.units = {Unit{.name = "u", .elements = elements, .parameters = {}}};
  request.machine = test_machine(false);
  request.budgets.host_bytes = kGiB;
  request.choices.host_state_share = 0;
  request.choices.weights = WeightRest::host;
  Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok());
  Simulation simulation = simulate(*plan, request.machine, {});
  double floor_s = 20.0 * static_cast<double>(elements) / 3.8e9 + 2.0 * static_cast<double>(elements) / 4e9;
  EXPECT_GE(simulation.step_s, 0.99 * floor_s);
  EXPECT_LE(simulation.step_s, 1.05 * floor_s);
}

}  // namespace
}  // namespace penstock
