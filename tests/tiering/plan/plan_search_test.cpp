// What the search over plans decides on its own.
#include "tiering/plan/plan_search.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/random_plans.h"
#include "tiering/plan/plan_candidates.h"

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

TEST(PredictedStep, IsTheMeanOfStepsThatAreDurableAndThoseThatAreNot) {
  PlanRequest request = half_in_host();
  auto of = [&](Durability durability) {
    request.durability = durability;
    const Result<ChosenPlan> chosen = choose_plan(request);
    EXPECT_TRUE(chosen.ok()) << chosen.status().message();
    return predicted_step_s(chosen->plan, request.machine);
  };
  const double each_s = of({Durability::Kind::step, 1}), none_s = of({Durability::Kind::exit, 1});
  EXPECT_GT(each_s, 1.1 * none_s);
  EXPECT_NEAR(of({Durability::Kind::every, 5}), 0.2 * each_s + 0.8 * none_s, 1e-9);
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

// Eight thousand tiles on a device whose memory holds no unit's activations for long, and half of the state in host
// memory.
PlanRequest many_tiles() {
  PlanRequest request;
  for (int unit = 0; unit < 24; ++unit) {
    request.workload.units.push_back({.name = text("unit", unit), .elements = 40'000'000, .parameters = {}});
  }
  request.workload.uses = uses_in_turn(request.workload.units);
  for (Use& use : request.workload.uses) {
    use.forward_s = 0.01;
    use.backward_s = 0.02;
    use.activation_bytes = 200 * kMiB;
    use.boundary_bytes = 10 * kMiB;
  }
  request.workload.micro_batches = 2;
  request.workload.clipping.norm = 1;
  request.machine = test::test_machine(true);
  request.budgets.host_bytes = 8 * kGiB;
  request.budgets.device_bytes = 3 * kGiB;
  request.durability.reset();
  return request;
}

TEST(CandidateSpace, BeginsWithAllStateOnTheDrivesTooWhereGradientsAreClipped) {
  PlanRequest request = many_tiles();
  request.workload.scope = StepScope::training;
  request.durability = Durability{};
  const auto count_on_drives = [](const std::vector<Candidate>& all) {
    return std::count_if(all.begin(), all.end(),
                         [](const Candidate& one) { return one.choices.host_state_share == 0; });
  };
  const std::vector<Candidate> clipped = CandidateSpace(request).beginnings();
  EXPECT_EQ(2 * count_on_drives(clipped), static_cast<ptrdiff_t>(clipped.size()));
  request.workload.clipping.norm = 0;
  const std::vector<Candidate> open = CandidateSpace(request).beginnings();
  EXPECT_EQ(2 * open.size(), clipped.size());
  EXPECT_EQ(count_on_drives(open), 0);
}

// In one group, few uses may keep what they have made; one micro-batch after another lets the most.
TEST(CandidateSpace, BeginsWithOneMicroBatchAfterAnotherToo) {
  PlanRequest request = many_tiles();
  request.workload.scope = StepScope::training;
  request.workload.clipping.norm = 0;
  double in_one_group = 0, one_by_one = 0;
  for (const Candidate& candidate : CandidateSpace(request).beginnings()) {
    double& most = candidate.choices.micro_batch_group == 1u ? one_by_one : in_one_group;
    most = std::max(most, candidate.choices.keep_share.value_or(0));
  }
  EXPECT_GT(one_by_one, in_one_group);
}

TEST(ChosenPlan, OfManyTilesIsNoSlowerThanAnyByHand) {
  const PlanRequest open = many_tiles();
  const Result<ChosenPlan> chosen = choose_plan(open);
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  int compared = 0;
  for (ActivationChoice activations : {ActivationChoice::keep, ActivationChoice::recompute,
                                       ActivationChoice::recompute_offload, ActivationChoice::offload}) {
    for (double keep_share : {0.0, 0.25, 0.5}) {
      for (double state_share : {0.0, 0.25, 0.5, 0.75}) {
        PlanRequest by_hand = open;
        by_hand.slots = chosen->slots;
        by_hand.durability = chosen->plan.durability;
        by_hand.choices.activations = activations;
        by_hand.choices.keep_share = keep_share;
        by_hand.choices.host_state_share = state_share;
        const Result<Plan> plan = make_plan(by_hand);
        if (!plan.ok()) continue;
        ++compared;
        EXPECT_LE(chosen->step_s(), predicted_step_s(*plan, open.machine) * 1.005)
            << static_cast<int>(activations) << " keep " << keep_share << " state " << state_share;
      }
    }
  }
  EXPECT_GT(compared, 12);
}

// A frozen model whose blocks are computed with in place, and adapters in many small tiles: what tables take is what is
// missing for units that arrive ahead.
TEST(ChosenPlan, OfAFrozenModelLetsItsWeightsArriveAheadWhereSomePlanByHandDoes) {
  PlanRequest open;
  for (int block = 0; block < 32; ++block) {
    for (const bool is_adapter : {false, true}) {
      open.workload.units.push_back({.name = text(is_adapter ? "adapters" : "block", block),
                                     .elements = is_adapter ? 600'000u : 100'000'000u,
                                     .trainable = is_adapter,
                                     .parameters = {}});
    }
    open.workload.uses.push_back({.name = text("use", block), .units = {2u * block, 2u * block + 1}});
    Use& use = open.workload.uses.back();
    use.forward_s = 0.2;
    use.backward_s = 0.35;
    use.activation_bytes = 18 * kMiB;
    use.boundary_bytes = 2 * kMiB;
  }
  open.workload.scope = StepScope::training;
  open.workload.clipping.norm = 1;
  open.machine = test::test_machine(false);
  open.choices.weights = WeightTier::nvme;
  open.choices.host_state_share = 1;
  int tight = 0;
  for (uint64_t host_bytes = 1200 * kMiB; host_bytes < 1800 * kMiB; host_bytes += 50 * kMiB) {
    open.budgets.host_bytes = host_bytes;
    const Result<ChosenPlan> chosen = choose_plan(open);
    ASSERT_TRUE(chosen.ok()) << chosen.status().message();
    PlanRequest by_hand = open;
    by_hand.choices.activations = ActivationChoice::recompute;
    by_hand.choices.window_tiles = 8;
    for (double keep_share : {0.0, 0.25, 0.5, 0.75, 0.9, 0.96}) {
      by_hand.choices.keep_share = keep_share;
      const Result<Plan> plan = make_plan(by_hand);
      if (!plan.ok()) continue;
      ++tight;
      EXPECT_LE(chosen->step_s(), predicted_step_s(*plan, open.machine) * 1.005)
          << bytes_text(host_bytes) << ", keep " << keep_share;
    }
  }
  EXPECT_GT(tight, 12);
}

}  // namespace
}  // namespace penstock
