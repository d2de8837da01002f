// Updates that wait for the next forward, and gradients that wait for their updates.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tiering/plan/plan_search.h"
#include "tiering/plan/simulator.h"

namespace penstock {
namespace {

constexpr uint32_t kUnits = 12, kTilesOfUnit = 32;

// All state on one drive, computing beside a GPU's host: as long as the drive takes for the step's bytes.
PlanRequest balanced() {
  PlanRequest request;
  Workload& workload = request.workload;
  workload.scope = StepScope::training;
  const double bytes = 26.0 * kUnits * kTilesOfUnit * kBlockElements, drive_gbps = 4;
  const double forward_s = bytes / drive_gbps / 1e9 / 3 / kUnits;
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    workload.units.push_back({.name = text("unit", unit), .elements = kTilesOfUnit * kBlockElements, .parameters = {}});
    workload.uses.push_back({.name = text("unit", unit),
                             .units = {unit},
                             .forward_s = forward_s,
                             .backward_s = 2 * forward_s,
                             .activation_bytes = 64 * kKiB,
                             .boundary_bytes = 64 * kKiB});
  }
  request.machine.host_gbps = 1000;  // a processor that has time for all updates
  request.machine.drives.resize(1);
  request.machine.drives[0].burst = MixCurve({{0, drive_gbps}, {1, drive_gbps}});
  request.budgets.host_bytes = kGiB;
  request.stores_activations = false;
  request.choices.tile_elements = kBlockElements;
  request.choices.window_tiles = 12;
  request.choices.weights = WeightTier::nvme;
  request.choices.host_state_share = 0;
  request.choices.activations = ActivationChoice::keep;
  return request;
}

Plan plan_of(PlanRequest request, double deferred) {
  request.choices.deferred_share = deferred;
  Result<Plan> plan = make_plan(request);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *std::move(plan);
}

double step_s(const Plan& plan) { return simulate(plan, balanced().machine, {}).step_s; }

uint64_t bytes_of(const Plan& plan, const std::string& line) {
  uint64_t bytes = 0;
  for (const BudgetLine& one : plan.budget_lines) bytes += one.name == line ? one.bytes : 0;
  return bytes;
}

double computing_s(const PlanRequest& request) {
  double sum = 0;
  for (const Use& use : request.workload.uses) sum += use.forward_s + use.backward_s;
  return sum;
}

TEST(DeferredUpdates, EvenOutWhatBackwardMovesTheMostOf) {
  const double floor_s = computing_s(balanced());
  const double at_once_s = step_s(plan_of(balanced(), 0)), deferred_s = step_s(plan_of(balanced(), 0.3));
  EXPECT_GT(at_once_s, 1.25 * floor_s);
  // Of twelve units the first and the last have nothing beside them.
  EXPECT_LT(deferred_s, 1.13 * floor_s);
  // With windows for two units, the drive has state to read where backward begins.
  PlanRequest reads_ahead = balanced();
  reads_ahead.choices.window_tiles = 2 * kTilesOfUnit;
  EXPECT_LT(step_s(plan_of(reads_ahead, 0.3)), 1.06 * floor_s);
}

TEST(DeferredUpdates, AreChosenWhereTheyHelpAndTheirGradientsHavePlaces) {
  const Result<ChosenPlan> chosen = choose_plan(balanced());
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  EXPECT_LT(chosen->durable.step_s, 1.12 * computing_s(balanced()));

  PlanRequest any_windows = balanced();
  any_windows.choices.window_tiles.reset();
  const Result<ChosenPlan> with_windows = choose_plan(any_windows);
  ASSERT_TRUE(with_windows.ok()) << with_windows.status().message();
  EXPECT_LT(with_windows->durable.step_s, 1.07 * computing_s(balanced()));
  EXPECT_GT(bytes_of(chosen->plan, "deferred gradients"), 0u);

  PlanRequest little = balanced();
  for (Use& use : little.workload.uses) use.forward_s *= 100, use.backward_s *= 100;
  const Result<ChosenPlan> computes = choose_plan(little);
  ASSERT_TRUE(computes.ok()) << computes.status().message();
  EXPECT_EQ(bytes_of(computes->plan, "deferred gradients"), 0u);  // nothing to be gained
}

TEST(DeferredUpdates, DoNotKeepTheNextForwardWaiting) {
  const Plan plan = plan_of(balanced(), 0.5);
  SimulationOptions options;
  options.record_spans = true;
  const Simulation simulation = simulate(plan, balanced().machine, options);
  double forward_begins_s = 0, last_read_begins_s = 0;
  for (const SimulatedSpan& span : simulation.spans) {
    const Move& move = plan.moves[span.move];
    if (span.step == 2 && move.kind == MoveKind::forward && move.use == 0) forward_begins_s = span.begin_s;
    if (span.step == 1 && move.kind == MoveKind::read_state)
      last_read_begins_s = std::max(last_read_begins_s, span.begin_s);
  }
  EXPECT_LT(forward_begins_s, last_read_begins_s);
}

// What the next step begins with is written before state is read that nothing waits for yet.
TEST(DeferredUpdates, LeaveTheDriveToTheFirstWeights) {
  PlanRequest reads_ahead = balanced();
  reads_ahead.choices.window_tiles = 3 * kTilesOfUnit;
  const Plan plan = plan_of(reads_ahead, 0.3);
  SimulationOptions options;
  options.record_spans = true;
  const Simulation simulation = simulate(plan, balanced().machine, options);
  double step_begins_s = simulation.steps[2].begin_s, forward_begins_s = 0;
  for (const SimulatedSpan& span : simulation.spans) {
    const Move& move = plan.moves[span.move];
    if (span.step == 2 && move.kind == MoveKind::forward && move.use == 0) forward_begins_s = span.begin_s;
  }
  ASSERT_GT(forward_begins_s, step_begins_s);
  int meanwhile = 0, ahead = 0;
  for (const SimulatedSpan& span : simulation.spans) {
    const Move& move = plan.moves[span.move];
    if (move.kind != MoveKind::read_state || (span.step == 1 && !plan.of_tile[move.tile].is_deferred)) continue;
    meanwhile += span.begin_s > step_begins_s && span.begin_s < forward_begins_s;
    ahead += span.step == 2 && span.begin_s >= forward_begins_s;
  }
  EXPECT_EQ(meanwhile, 0);
  EXPECT_GT(ahead, 0);
}

// So each of their weights is read once, by the update, and the plan says so.
TEST(DeferredUpdates, LeaveTheNextForwardTheirWeights) {
  PlanRequest request = balanced();
  request.choices.deferred_share = 0.5;
  const Result<ChosenPlan> chosen = choose_plan(request);
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  const Plan& plan = chosen->plan;
  const SimulatedStep& step = chosen->durable.steps[1];
  uint64_t deferred_bytes = 0;
  for (TileId tile = 0; tile < plan.tiles.size(); ++tile) {
    if (plan.of_tile[tile].is_deferred) deferred_bytes += plan.tiles[tile].weight_bytes;
  }
  EXPECT_GT(step.found_bytes, deferred_bytes * 3 / 4);
  EXPECT_EQ(plan.read_bytes(), step.read_bytes);
  EXPECT_EQ(plan.bytes_on(Lane::nvme_read), step.read_bytes + step.found_bytes);
}

TEST(DeferredUpdates, AreNoneOfWhatForwardBeginsWith) {
  const Plan plan = plan_of(balanced(), 1);
  MoveId last_of_first = 0, first_of_others = kNoMove;
  for (TileId tile = 0; tile < plan.tiles.size(); ++tile) {
    const MoveId update = plan.of_tile[tile].update;
    if (plan.tiles[tile].unit == 0) {
      last_of_first = std::max(last_of_first, update);
    } else {
      first_of_others = std::min(first_of_others, update);
    }
  }
  EXPECT_LT(last_of_first, first_of_others);
}

// Where gradients are clipped step after step, nothing is updated before the verdict.
struct AfterVerdict {
  double updated_by_s = 0, half_of_forward_begins_s = 0;  // of a step, and of the next one

  explicit AfterVerdict(const PlanRequest& request) {
    const Plan plan = plan_of(request, 0);
    SimulationOptions options;
    options.record_spans = true;
    options.verdict = [](uint64_t) { return Verdict::strike; };
    options.speculate = [](uint64_t) { return false; };
    for (const SimulatedSpan& span : simulate(plan, request.machine, options).spans) {
      const Move& move = plan.moves[span.move];
      const bool updates = move.kind == MoveKind::update || move.kind == MoveKind::update_again;
      if (span.step == 1 && updates) updated_by_s = std::max(updated_by_s, span.end_s);
      if (span.step == 2 && move.kind == MoveKind::forward && move.use == kUnits / 2) {
        half_of_forward_begins_s = span.begin_s;
      }
    }
  }
};

// What was updated ahead of the verdict is read and written once more.
TEST(TakenBackSteps, TakeLongerAndMoveMoreThanThoseThatAreConfirmed) {
  PlanRequest request = balanced();
  request.workload.clipping.norm = 1;
  const Plan plan = plan_of(request, 0);
  const PredictedSteps ahead = predicted_taken_back(plan, request.machine, Verdict::strike, true);
  const PredictedSteps behind = predicted_taken_back(plan, request.machine, Verdict::strike, false);
  EXPECT_GT(ahead.step_s, predicted_step_s(plan, request.machine) * 1.2);
  EXPECT_GT(ahead.read_bytes, static_cast<double>(plan.read_bytes()) * 1.2);
  EXPECT_GT(ahead.read_bytes, behind.read_bytes);
  EXPECT_GT(ahead.written_bytes, behind.written_bytes);
  EXPECT_EQ(predicted_taken_back(plan, MachineProfile(), Verdict::strike, true).step_s, 0);
}

TEST(UpdatesAfterTheVerdict, AreMadeInTheOrderInWhichForwardNeedsThem) {
  PlanRequest request = balanced();
  request.workload.clipping.norm = 1;
  const AfterVerdict from_drives(request);
  EXPECT_LT(from_drives.half_of_forward_begins_s, from_drives.updated_by_s);

  request.choices.host_state_share = 1;
  request.choices.weights = WeightTier::host;
  request.machine.host_gbps = 8;  // so that updates take as long as computing
  const AfterVerdict in_host(request);
  EXPECT_LT(in_host.half_of_forward_begins_s, in_host.updated_by_s);
}

// Nothing is written before the verdict, but what will be updated can be read, as far as there are windows for it.
TEST(UpdatesAfterTheVerdict, FindStateThatWasReadWhileBackwardRan) {
  PlanRequest request = balanced();
  request.workload.clipping.norm = 1;
  const auto struck_s = [&](uint32_t windows) {
    request.choices.ahead_window_tiles = windows;
    return predicted_taken_back(plan_of(request, 0), request.machine, Verdict::strike, false).step_s;
  };
  const double few_s = struck_s(0), some_s = struck_s(4 * kTilesOfUnit), all_s = struck_s(kUnits * kTilesOfUnit);
  const double computing = computing_s(request), read_s = 12.0 / 26 * computing;
  EXPECT_NEAR(some_s, few_s - read_s * 4 / kUnits, 0.08 * computing);
  EXPECT_NEAR(all_s, few_s - read_s, 0.08 * computing);

  // What an overflow takes back gives its windows to the next step.
  SimulationOptions options;
  options.steps = 6;
  options.verdict = [](uint64_t step) { return step % 2 == 0 ? Verdict::skip : Verdict::strike; };
  options.speculate = [](uint64_t) { return false; };
  EXPECT_LT(simulate(plan_of(request, 0), request.machine, options).step_s, all_s);
}

// What the next forward has a place for is left there by its update: it is neither read nor written before.
TEST(UpdatesAfterTheVerdict, LeaveTheNextForwardTheWeights) {
  PlanRequest request = balanced();
  request.workload.clipping.norm = 1;
  for (Use& use : request.workload.uses) use.forward_s /= 4, use.backward_s /= 4;  // forward waits for updates
  const Plan plan = plan_of(request, 0);
  const PredictedSteps struck = predicted_taken_back(plan, request.machine, Verdict::strike, false);
  const double elements = kUnits * kTilesOfUnit * static_cast<double>(kBlockElements);
  // 12 for the state with the weight, 2 for backward, but for the unit with which forward turns.
  EXPECT_NEAR(struck.read_bytes / elements, 12 + 2.0 * (kUnits - 1) / kUnits, 0.05);
  EXPECT_NEAR(struck.written_bytes / elements, 12, 0.05);

  SimulationOptions options;
  options.record_spans = true;
  options.verdict = [](uint64_t) { return Verdict::strike; };
  options.speculate = [](uint64_t) { return false; };
  double updated_s = 0, written_s = 0, fetched_s = 0;  // of the first unit
  for (const SimulatedSpan& span : simulate(plan, request.machine, options).spans) {
    const Move& move = plan.moves[span.move];
    if (move.unit != 0) continue;
    if (span.step == 1 && move.kind == MoveKind::update_again) updated_s = std::max(updated_s, span.end_s);
    if (span.step == 1 && move.kind == MoveKind::write_state_again) written_s = std::max(written_s, span.end_s);
    if (span.step == 2 && move.kind == MoveKind::fetch_weight && fetched_s == 0) fetched_s = span.end_s;
  }
  EXPECT_EQ(fetched_s, updated_s);
  EXPECT_LT(fetched_s, written_s);
}

// Nobody fetches then, also when all of a unit is where it would have been fetched to.
TEST(UpdatesAfterTheVerdict, EndWhereTheStepThatWouldFindTheWeightsIsGivenUp) {
  PlanRequest request = balanced();
  request.workload.clipping.norm = 1;
  for (Unit& unit : request.workload.units) unit.elements = 2 * kBlockElements;
  const Plan plan = plan_of(request, 0);
  PlanRun run(plan);
  std::vector<PlanRun::Ticket> in_flight, leaving;  // the latter: all updates of a unit, which are kept under way
  const auto issue = [&] {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      while (const auto ticket = run.next(static_cast<Lane>(lane))) {
        (run.leaves_weight_to(*ticket) ? leaving : in_flight).push_back(*ticket);
      }
    }
  };
  const auto go_on = [&] {
    issue();
    for (const PlanRun::Ticket ticket : std::exchange(in_flight, {})) run.ended(ticket);
    for (std::optional<TileId> tile; (tile = run.next_gradient(0)) && run.try_take_gradient(0, *tile);) {
      run.gradient_complete(0, *tile);
    }
  };
  run.begin(0, {.speculate = false});
  while (!run.gradients_complete(0)) go_on();
  run.give_verdict(0, Verdict::strike);
  run.begin(1, {.speculate = false});
  while (leaving.size() < 2) go_on();
  run.abandon(1);
  while (!run.idle()) {
    for (const PlanRun::Ticket ticket : std::exchange(leaving, {})) run.ended(ticket);
    go_on();
  }
  run.begin(2, {.speculate = false});
}

TEST(SpareHostMemory, GoesToWhatStepsReadWhileTheyWaitForTheirVerdict) {
  PlanRequest request = balanced();
  request.workload.clipping.norm = 1;
  const auto chosen_with = [&](uint64_t host_bytes) {
    request.budgets.host_bytes = host_bytes;
    const Result<ChosenPlan> chosen = choose_plan(request);
    EXPECT_TRUE(chosen.ok()) << chosen.status().message();
    EXPECT_LE(chosen->plan.needed_bytes(Tier::host), host_bytes);
    return *chosen;
  };
  const ChosenPlan much = chosen_with(2 * kGiB), little = chosen_with(150 * kMiB), least = chosen_with(120 * kMiB);
  EXPECT_EQ(much.plan.ahead_windows, kUnits * kTilesOfUnit) << "backward takes as long as reading all";
  EXPECT_GT(little.plan.ahead_windows, least.plan.ahead_windows + 16);
  EXPECT_LT(little.plan.ahead_windows, much.plan.ahead_windows);
  // A step that speculates has nothing of them, good or bad.
  request.choices.ahead_window_tiles = 0;
  EXPECT_EQ(predicted_step_s(chosen_with(2 * kGiB).plan, request.machine),
            predicted_step_s(much.plan, request.machine));
  request.choices.ahead_window_tiles.reset();
  request.workload.clipping.norm = 0;
  EXPECT_EQ(chosen_with(2 * kGiB).plan.ahead_windows, 0u) << "no step waits";
}

// What is handed over waits in places; while none is free, who computes cannot go on.
TEST(HandingOver, KeepsComputingWaitingWhereAUsesGradientsHaveFewPlaces) {
  const Plan many = plan_of(balanced(), 0);
  const uint64_t of_a_use = kTilesOfUnit * many.tiles.gradient_bytes_max();
  EXPECT_EQ(bytes_of(many, "gradient backlog"), of_a_use);
  PlanRequest request = balanced();
  request.budgets.host_bytes = many.needed_bytes(Tier::host) - of_a_use * 9 / 10;
  const Plan few = plan_of(request, 0);
  EXPECT_LT(bytes_of(few, "gradient backlog"), of_a_use);
  EXPECT_GT(step_s(few), 1.04 * step_s(many));
}

}  // namespace
}  // namespace penstock
