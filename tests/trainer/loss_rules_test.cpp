#include "runtime/trainer/loss_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace penstock::trainer {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

LossRulesState after(const LossRules& rules, const std::vector<double>& losses) {
  LossRulesState state;
  for (const double loss : losses) let_pass(rules, loss, state);
  return state;
}

TEST(LossRules, WhatIsNotFiniteIsTroubleFromTheFirstStepOnAndStopsARunThatSaysNothing) {
  const LossRules rules;
  for (const double loss : {kNan, kInfinite, -kInfinite}) {
    EXPECT_EQ(trouble_of(rules, {}, loss), LossTrouble::not_finite);
    EXPECT_EQ(action_on(rules, {}, LossTrouble::not_finite), LossAction::stop);
  }
  EXPECT_EQ(trouble_of(rules, {}, 1e300), LossTrouble::none);
}

TEST(LossRules, ASpikeIsSoManyDeviationsAboveTheMedian) {
  const LossRules rules{.spike = LossAction::skip, .window = 5, .deviations = 2};
  // The median is 3, the distances from it are 0, 1, 1, 1, 1.
  const LossRulesState state = after(rules, {2, 4, 3, 4, 2});
  ASSERT_TRUE(highest_loss(rules, state));
  EXPECT_DOUBLE_EQ(*highest_loss(rules, state), 3 + 2 * 1.4826);
  EXPECT_EQ(trouble_of(rules, state, 5.96), LossTrouble::none);
  EXPECT_EQ(trouble_of(rules, state, 5.97), LossTrouble::spike);
  EXPECT_EQ(trouble_of(rules, state, -100), LossTrouble::none);
  EXPECT_EQ(trouble_of(rules, state, kNan), LossTrouble::not_finite);
  EXPECT_EQ(action_on(rules, state, LossTrouble::spike), LossAction::skip);
}

TEST(LossRules, OfAnEvenWindowTheMedianIsBetweenTheMiddleTwo) {
  const LossRules rules{.spike = LossAction::skip, .window = 4, .deviations = 2};
  // The median is 4, the distances from it are 3, 1, 1, 5: theirs is 2.
  EXPECT_DOUBLE_EQ(*highest_loss(rules, after(rules, {5, 1, 9, 3})), 4 + 2 * 1.4826 * 2);
}

TEST(LossRules, OneThatWasLetPassDoesNotHideTheNext) {
  const LossRules rules{.spike = LossAction::skip, .window = 8, .deviations = 8};
  LossRulesState state = after(rules, {2.1, 2, 2.2, 1.9, 2, 2.1, 2, 2.05});
  const double before = *highest_loss(rules, state);
  let_pass(rules, 1e6, state);
  EXPECT_NEAR(*highest_loss(rules, state), before, 0.5);
}

TEST(LossRules, LossesThatHardlyDifferAreNoReasonToAct) {
  const LossRules rules{.spike = LossAction::stop, .window = 4, .deviations = 5};
  const LossRulesState state = after(rules, {2, 2, 2, 2});
  EXPECT_EQ(trouble_of(rules, state, 2.19), LossTrouble::none);  // 5 deviations of 2 % of 2
  EXPECT_EQ(trouble_of(rules, state, 2.21), LossTrouble::spike);
}

TEST(LossRules, NothingIsASpikeUntilTheWindowIsFullNorWhereNoneIsLookedFor) {
  LossRules rules{.spike = LossAction::skip, .window = 4};
  LossRulesState state = after(rules, {1, 1, 1});
  EXPECT_EQ(trouble_of(rules, state, 1e9), LossTrouble::none);
  let_pass(rules, 1, state);
  EXPECT_EQ(trouble_of(rules, state, 1e9), LossTrouble::spike);
  for (int i = 0; i < 10; ++i) let_pass(rules, 5, state);
  EXPECT_EQ(state.losses, (std::vector<double>{5, 5, 5, 5}));
  rules.window = 2;
  let_pass(rules, 6, state);
  EXPECT_EQ(state.losses, (std::vector<double>{5, 6}));
  rules.spike = LossAction::ignore;
  EXPECT_EQ(trouble_of(rules, state, 1e9), LossTrouble::none);
  EXPECT_EQ(after(rules, {1, 2, 3}), LossRulesState());
}

// Losses as they are: noise about a line that falls.
TEST(LossRules, NoStepOfAnOrdinaryRunIsASpikeByTheDefaults) {
  const LossRules rules{.spike = LossAction::stop};
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> noise(0, 0.15);
    LossRulesState state;
    for (int step = 0; step < 1000; ++step) {
      const double loss = 2 + 4 * std::exp(-step / 150.0) + noise(random);
      ASSERT_EQ(trouble_of(rules, state, loss), LossTrouble::none) << "seed " << seed << ", step " << step;
      let_pass(rules, loss, state);
    }
    EXPECT_EQ(trouble_of(rules, state, 6), LossTrouble::spike) << "seed " << seed;
  }
}

TEST(LossRules, ActAtMostSoOften) {
  const LossRules rules{.not_finite = LossAction::rollback, .spike = LossAction::ignore, .at_most = 2};
  LossRulesState state;
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(action_on(rules, state, LossTrouble::not_finite), LossAction::rollback);
    acted(rules, LossAction::rollback, 5, state);
  }
  EXPECT_EQ(action_on(rules, state, LossTrouble::not_finite), LossAction::stop);
  EXPECT_EQ(action_on(rules, state, LossTrouble::spike), LossAction::ignore);
  EXPECT_EQ(action_on(rules, state, LossTrouble::none), LossAction::ignore);
}

TEST(LossRules, ARateStaysLoweredForTheRestOrForSoManySteps) {
  LossRules rules{.not_finite = LossAction::lower_rate, .rate_factor = 0.5};
  LossRulesState state;
  EXPECT_EQ(rate_factor_of(state, 1), 1);
  acted(rules, LossAction::skip, 7, state);
  EXPECT_EQ(rate_factor_of(state, 7), 1);
  acted(rules, LossAction::lower_rate, 7, state);
  acted(rules, LossAction::lower_rate, 7, state);
  EXPECT_EQ(rate_factor_of(state, 7), 0.25);
  EXPECT_EQ(rate_factor_of(state, 70000), 0.25);
  rules.rate_steps = 3;
  state = {};
  acted(rules, LossAction::lower_rate, 7, state);
  EXPECT_EQ(rate_factor_of(state, 9), 0.5);
  EXPECT_EQ(rate_factor_of(state, 10), 1);
  acted(rules, LossAction::lower_rate, 9, state);
  EXPECT_EQ(rate_factor_of(state, 11), 0.25);
  EXPECT_EQ(rate_factor_of(state, 12), 1);
  acted(rules, LossAction::lower_rate, 20, state);
  EXPECT_EQ(rate_factor_of(state, 20), 0.5);  // what was lowered is over
}

}  // namespace
}  // namespace penstock::trainer
