// Thousands of random models, budgets and fates: every plan keeps its rules, ends, and computes what a plain loop does.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/instrumented.h"
#include "tests/support/plan_world.h"
#include "tests/support/random_plans.h"
#include "tiering/plan/planner.h"
#include "tiering/plan/simulator.h"

namespace penstock {
namespace {

using test::RandomPlans;

TEST_F(RandomPlans, KeepTheirRulesAndTheirBudgets) {
  for_each_plan(2000, [](const PlanRequest& request, const Plan& plan, std::mt19937_64&) {
    Status status = validate(plan);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_LE(plan.needed_bytes(Tier::host), request.budgets.host_bytes);
    EXPECT_LE(plan.needed_bytes(Tier::device), request.budgets.device_bytes);
  });
}

TEST_F(RandomPlans, ComputeWhatAPlainLoopDoesInAnyOrderOfEnds) {
  uint64_t redone = 0, deferred = 0, read_twice = 0, ran_ahead = 0, left = 0;
  for_each_plan(test::fewer(8000), [&](const PlanRequest& request, const Plan& plan, std::mt19937_64& random) {
    test::WorldOptions options;
    options.seed = random();
    options.slots = slots_per_tile(request);
    options.some_absent = random() % 2 == 0;
    options.fewer_micro_batches = random() % 2 == 0;
    options.gradients = static_cast<test::WorldOptions::Gradients>(random() % 3);
    options.streams = random() % 2 == 0;
    options.begins_late = random() % 2 == 0;
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
    deferred += world.moves_issued(MoveKind::fetch_gradient);
    ran_ahead += world.moves_ahead();
    left += world.weights_left();
  });
  EXPECT_GT(ran_ahead, test::fewer(500));
  EXPECT_GT(left, test::fewer(500));
  EXPECT_GT(redone, test::fewer(500));
  EXPECT_GT(deferred, test::fewer(500));
  EXPECT_GT(read_twice, 0u);
}

TEST_F(RandomPlans, EndInTheSimulatorAndMoveTheBytesTheyAnnounce) {
  uint64_t found_bytes = 0;
  for_each_plan(500, [&](const PlanRequest& request, const Plan& plan, std::mt19937_64&) {
    SimulationOptions options;
    options.gradient_s = [](uint32_t) { return 1e-4; };
    Simulation simulation = simulate(plan, request.machine, options);
    EXPECT_GE(simulation.total_s, 0);
    for (TileId tile = 0; tile < plan.tiles.size(); ++tile) {
      // Such a gradient may or may not have left before the verdict.
      if (plan.placements[tile].state_in_host() && plan.of_tile[tile].spill != kNoMove) return;
    }
    for (uint64_t step = 0; step < options.steps; ++step) {
      if (!plan.durability.durable_after(step)) continue;
      EXPECT_EQ(simulation.steps[step].read_bytes + simulation.steps[step].found_bytes, plan.read_bytes());
      found_bytes += simulation.steps[step].found_bytes;
      EXPECT_EQ(simulation.steps[step].written_bytes, plan.written_bytes());
    }
  });
  EXPECT_GT(found_bytes, 0u);
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
  request.machine = test::test_machine(false);
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
  request.workload.clipping.norm = 1;
  request.machine = test::test_machine(false);
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
  request.workload.units.assign(3, Unit{.name = "u", .elements = elements, .parameters = {}});
  request.machine = test::test_machine(false);
  request.budgets.host_bytes = kGiB;
  request.choices.host_state_share = 0;
  request.choices.weights = WeightTier::host;
  Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->read_bytes(), 3 * 10 * elements);
  EXPECT_EQ(plan->written_bytes(), 3 * 12 * elements);

  request.workload.uses = uses_in_turn(request.workload.units);
  for (Use& use : request.workload.uses) use.forward_s = use.backward_s = 1e-3;
  request.workload.scope = StepScope::training;
  request.choices.weights = WeightTier::nvme;
  plan = make_plan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->read_bytes(), (2 * 14 + 12) * elements) << "the last use's weights serve forward and backward";
  EXPECT_EQ(plan->written_bytes(), 3 * 12 * elements);
}

// Embedding, blocks, and a head that is computed with the embedding's weights.
PlanRequest tied_request() {
  PlanRequest request;
  Workload& work = request.workload;
  work.units.assign(10, Unit{.name = "u", .elements = 1 << 20, .parameters = {}});
  work.units.front().elements = 8 << 20;
  work.units.back().elements = 1 << 10;
  work.uses = uses_in_turn(work.units);
  work.uses.back().units.push_back(0);
  for (Use& use : work.uses) use.forward_s = use.backward_s = 1e-3;
  work.scope = StepScope::training;
  work.micro_batches = 4;
  request.machine = test::test_machine(true);
  request.budgets = {kGiB, kGiB};
  return request;
}

TEST(Planner, ATiedGradientLeavesTheDeviceAsASumOfEachUse) {
  const PlanRequest request = tied_request();
  const Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  uint64_t downloaded = 0;
  for (const Move& move : plan->moves) downloaded += move.kind == MoveKind::download_gradient ? move.bytes : 0;
  const uint64_t tied = request.workload.units.front().elements;
  EXPECT_EQ(downloaded, 2 * (request.workload.elements() - tied) + 2 * 4 * tied);
}

TEST(Planner, InGroupsEachMicroBatchesGradientLeavesTheDevice) {
  PlanRequest request = tied_request();
  request.choices.micro_batch_group = 2;
  const Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  uint64_t downloaded = 0;
  for (const Move& move : plan->moves) downloaded += move.kind == MoveKind::download_gradient ? move.bytes : 0;
  EXPECT_EQ(downloaded, 4 * 4 * (request.workload.elements() + request.workload.units.front().elements));
}

TEST(Planner, OfATiedModelOnlyTheTiedSumsLastAllOfBackward) {
  PlanRequest request = tied_request();
  const uint64_t tied = 4 * (8 << 20), other = 4 << 20;
  auto sums = [&] {
    const Result<Plan> plan = make_plan(request);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plan.ok() ? plan->sums.bytes : 0;
  };
  EXPECT_EQ(sums(), 2 * tied + 2 * other);  // and two of the others, one after another
  request.choices.micro_batch_group = 2;
  EXPECT_EQ(sums(), 2 * tied + 8 * other + (4 << 10));
}

TEST(Planner, HasNoSumsWhereTheOnlyContributionStaysInHostMemory) {
  PlanRequest request = tied_request();
  request.machine = test::test_machine(false);
  request.workload.micro_batches = 1;
  const uint64_t tied = 4 * (8 << 20), other = 2 << 20;  // a sum, and what there is but one of
  auto sums = [&] {
    const Result<Plan> plan = make_plan(request);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plan.ok() ? plan->sums.bytes : 0;
  };
  EXPECT_EQ(sums(), 2 * tied + 2 * other);
  for (Use& use : request.workload.uses) use.gradients_stay = true;
  EXPECT_EQ(sums(), 2 * tied);
  request.workload.micro_batches = 2;
  EXPECT_EQ(sums(), 2 * tied + 2 * 2 * other);
  request.workload.micro_batches = 1;
  request.machine = test::test_machine(true);
  EXPECT_EQ(sums(), 2 * tied + 2 * other) << "they come down from the device";
}

TEST(Planner, HasRoomForTheLargestUseThatIsComputedAgain) {
  PlanRequest request;
  Workload& work = request.workload;
  work.units.assign(3, Unit{.name = "u", .elements = 1 << 20, .parameters = {}});
  work.uses = uses_in_turn(work.units);
  for (Use& use : work.uses) {
    use.forward_s = use.backward_s = 1e-3;
    use.activation_bytes = 10 * kMiB;
    use.boundary_bytes = kMiB;
  }
  work.uses[1].activation_bytes = 90 * kMiB;
  work.scope = StepScope::training;
  request.machine = test::test_machine(false);
  request.budgets.host_bytes = kGiB;
  request.choices.activations = ActivationChoice::recompute;
  request.choices.keep_share = 0;
  const Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const auto computed = std::find_if(plan->budget_lines.begin(), plan->budget_lines.end(),
                                     [](const BudgetLine& line) { return line.name == "unit being computed"; });
  ASSERT_NE(computed, plan->budget_lines.end());
  EXPECT_EQ(computed->bytes, 2 * kMiB + 90 * kMiB);
}

TEST(Planner, UsesAllOfTheBudgetBeforeItReads) {
  PlanRequest request;
  const uint64_t elements = 1 << 24;
  request.workload.units = {Unit{.name = "u", .elements = elements, .parameters = {}}};
  request.machine = test::test_machine(false);
  request.budgets.host_bytes = 12 * elements + 256 * kMiB;
  Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->read_bytes(), 0u);
  EXPECT_EQ(plan->written_bytes(), 12 * elements);
}

// Small requests keep a drive as busy as large ones only if more of them are under way.
TEST(PlanRun, FillsALaneByBytesInPlanOrder) {
  PlanRequest request;
  request.workload.units = {Unit{.name = "u", .elements = 1 << 24, .parameters = {}}};
  request.workload.clipping.norm = 1;
  request.machine = test::test_machine(false);
  request.budgets.host_bytes = kGiB;
  request.choices.host_state_share = request.choices.retained_host_share = 0;
  Result<Plan> made = make_plan(request);
  ASSERT_TRUE(made.ok()) << made.status().message();
  Plan& plan = *made;
  const uint64_t spill_bytes = plan.tiles[0].gradient_bytes, write_bytes = plan.tiles[0].slot_bytes();
  plan.lane_room[static_cast<size_t>(Lane::nvme_write)] = write_bytes + 3 * spill_bytes;

  PlanRun run(plan);
  run.begin(0, {});
  auto give_gradient = [&] {
    const std::optional<uint32_t> tile = run.next_gradient(0);
    ASSERT_TRUE(tile && run.try_take_gradient(0, *tile));
    run.gradient_complete(0, *tile);
  };
  auto issued = [&](Lane lane) {
    std::vector<PlanRun::Ticket> all;
    while (const auto ticket = run.next(lane)) all.push_back(*ticket);
    return all;
  };
  for (int i = 0; i < 4; ++i) give_gradient();
  const std::vector<PlanRun::Ticket> spills = issued(Lane::nvme_write);
  EXPECT_EQ(spills.size(), 4u);
  const std::vector<PlanRun::Ticket> reads = issued(Lane::nvme_read);
  ASSERT_FALSE(reads.empty());
  run.ended(reads.front());
  const std::vector<PlanRun::Ticket> updates = issued(Lane::update);
  ASSERT_EQ(updates.size(), 1u);
  run.ended(updates.front());

  // The first tile's state has room only when one of the four spills has ended, and a later spill does not overtake it.
  give_gradient();
  EXPECT_TRUE(issued(Lane::nvme_write).empty());
  run.ended(spills.front());
  const std::vector<PlanRun::Ticket> next = issued(Lane::nvme_write);
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(plan.moves[next.front().move].kind, MoveKind::write_state);
}

void end_step(PlanRun& run, uint64_t step) {
  while (run.is_open(step)) {
    size_t ended = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      while (const auto ticket = run.next(static_cast<Lane>(lane))) {
        run.ended(*ticket);
        ++ended;
      }
    }
    ASSERT_TRUE(ended > 0 || !run.is_open(step)) << run.stall_text();
  }
}

Result<Plan> plan_of_a_unit(uint64_t elements) {
  PlanRequest request;
  request.workload.units = {Unit{.name = "u", .elements = elements, .parameters = {}}};
  request.machine = test::test_machine(false);
  request.budgets.host_bytes = kGiB;
  return make_plan(request);
}

TEST(PlanRun, OfAClosedStepAllMovesAreOver) {
  const Result<Plan> plan = plan_of_a_unit(1 << 20);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  PlanRun run(*plan);
  run.begin(0, {});
  EXPECT_FALSE(run.is_over({0, plan->commit}));
  run.abandon(0);
  end_step(run, 0);
  for (MoveId id = 0; id < plan->moves.size(); ++id) EXPECT_TRUE(run.is_over({0, id})) << "move " << id;
}

// Gradients that were being written when a step is given up keep no place from those of the next.
TEST(PlanRun, GivesBackThePlacesOfGradientsThatWereNotComplete) {
  const Result<Plan> plan = plan_of_a_unit(1 << 24);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  PlanRun run(*plan);
  uint64_t places = 0;
  for (uint64_t step = 0; step < 3; ++step) {
    run.begin(step, {});
    uint64_t taken = 0;
    for (TileId tile = 0; tile < plan->tiles.size() && run.try_take_gradient(step, tile); ++tile) ++taken;
    EXPECT_GT(taken, 0u);
    if (step == 0) places = taken;
    EXPECT_EQ(taken, places) << "step " << step;
    run.abandon(step);
    end_step(run, step);
  }
}

TEST(Simulator, HidesTheUpdateBehindTheDrive) {
  PlanRequest request;
  const uint64_t elements = 1 << 28;
  request.workload.units = {Unit{.name = "u", .elements = elements, .parameters = {}}};
  request.machine = test::test_machine(false);
  request.budgets.host_bytes = kGiB;
  request.choices.host_state_share = 0;
  request.choices.weights = WeightTier::host;
  Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok());
  Simulation simulation = simulate(*plan, request.machine, {});
  double floor_s = 20.0 * static_cast<double>(elements) / 3.8e9 + 2.0 * static_cast<double>(elements) / 4e9;
  EXPECT_GE(simulation.step_s, 0.99 * floor_s);
  EXPECT_LE(simulation.step_s, 1.05 * floor_s);
}

// One thread beside those that update: the more there are, the less of the processors it has. Without updates it has
// them all.
TEST(Simulator, HandsGradientsOverInPlaceMoreSlowlyBesideUpdates) {
  PlanRequest request;
  request.workload.scope = StepScope::training;
  for (uint32_t unit = 0; unit < 4; ++unit) {
    request.workload.units.push_back({.name = text("u", unit), .elements = 8 * kBlockElements, .parameters = {}});
    request.workload.uses.push_back({.name = text("u", unit), .units = {unit}, .forward_s = 1e-3, .backward_s = 2e-3});
  }
  request.machine = test::test_machine(false);
  request.machine.host_gbps = 1;
  request.stores_activations = false;
  request.budgets.host_bytes = 4 * kGiB;
  const Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  // Until the first step has computed, and so has handed over what it computed before.
  const auto computed_s = [&](uint32_t threads, bool updates) {
    request.machine.threads = threads;
    Plan of = *plan;
    if (!updates) {  // in no time
      for (Move& move : of.moves) move.bytes = move.lane == Lane::update ? 0 : move.bytes;
    }
    SimulationOptions options;
    options.record_spans = true;
    double end_s = 0;
    for (const SimulatedSpan& span : simulate(of, request.machine, options).spans) {
      if (span.step == 0 && of.moves[span.move].lane == Lane::compute) end_s = std::max(end_s, span.end_s);
    }
    return end_s;
  };
  EXPECT_GT(computed_s(15, true), 1.1 * computed_s(1, true));
  EXPECT_NEAR(computed_s(15, false), computed_s(1, false), 1e-9);
}

TEST(Simulator, CommitsWithTwoFlushes) {
  PlanRequest request;
  request.workload.units = {Unit{.name = "u", .elements = 1 << 24, .parameters = {}}};
  request.machine = test::test_machine(false);
  request.machine.drives.push_back(request.machine.drives.front());
  request.budgets.host_bytes = kGiB;
  const Result<Plan> plan = make_plan(request);
  ASSERT_TRUE(plan.ok());
  auto step_with_flushes_of = [&](double first_s, double last_s) {
    for (DriveRates& drive : request.machine.drives) drive.flush_s = last_s;
    request.machine.drives.front().flush_s = first_s;
    SimulationOptions options;
    options.steps = 1;
    return simulate(*plan, request.machine, options).total_s;
  };
  const double without_s = step_with_flushes_of(0, 0);
  EXPECT_NEAR(step_with_flushes_of(0.25, 0.25) - without_s, 0.5, 1e-9);
  EXPECT_NEAR(step_with_flushes_of(0.25, 0.125) - without_s, 0.5, 1e-9)
      << "drives flush at once, and the slowest is last";
  EXPECT_NEAR(step_with_flushes_of(0.125, 0.25) - without_s, 0.5, 1e-9);
}

}  // namespace
}  // namespace penstock
