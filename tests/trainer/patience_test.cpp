#include "runtime/trainer/patience.h"

#include <gtest/gtest.h>

#include <limits>

namespace penstock::trainer {
namespace {

TEST(Patience, EndsARunAfterSoManyEvaluationsWithoutABetterOne) {
  PatienceState state;
  const PatienceRules rules{.evaluations = 2, .least_gain = 0.5};
  EXPECT_FALSE(is_over(rules, 4, state));
  EXPECT_FALSE(is_over(rules, 3.5, state));  // lower by no more than the least gain
  EXPECT_FALSE(is_over(rules, 3.25, state));
  EXPECT_EQ(state, (PatienceState{.best = 3.25, .evaluations_since = 0}));
  EXPECT_FALSE(is_over(rules, 3, state));
  EXPECT_TRUE(is_over(rules, 3, state));
  EXPECT_TRUE(is_over(rules, 9, state));
}

TEST(Patience, WhatIsNotFiniteIsNoBetter) {
  PatienceState state;
  const PatienceRules rules{.evaluations = 3};
  EXPECT_FALSE(is_over(rules, std::numeric_limits<double>::quiet_NaN(), state));
  EXPECT_FALSE(is_over(rules, -std::numeric_limits<double>::infinity(), state));
  EXPECT_FALSE(state.best);
  EXPECT_FALSE(is_over(rules, 7, state));
  EXPECT_EQ(state, (PatienceState{.best = 7, .evaluations_since = 0}));
}

TEST(Patience, WithoutARuleARunGoesOn) {
  PatienceState state;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(is_over({}, 1, state));
  EXPECT_EQ(state, PatienceState());
}

}  // namespace
}  // namespace penstock::trainer
