#include "runtime/trainer/token_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

namespace penstock::trainer {
namespace {

const std::vector<float> kLogits = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint64_t kDraws = 40000;

std::map<int32_t, double> shares_of(const ChoiceRules& rules, uint64_t key) {
  std::map<int32_t, double> shares;
  for (uint64_t i = 0; i < kDraws; ++i) shares[choose_token(kLogits, rules, key, i)] += 1.0 / kDraws;
  return shares;
}

// Six deviations of a share of `kDraws` draws: one seed in a billion is beyond. And what adding up rounds.
double far(double share) { return 6 * std::sqrt(share * (1 - share) / kDraws) + 1e-9; }

void expect_shares(const ChoiceRules& rules, const std::map<int32_t, double>& expected) {
  for (const uint64_t key : {1u, 2u}) {
    const auto found = shares_of(rules, key);
    EXPECT_EQ(found.size(), expected.size());
    for (const auto& [token, share] : expected) {
      ASSERT_TRUE(found.contains(token)) << "token " << token << ", key " << key;
      EXPECT_NEAR(found.at(token), share, far(share)) << "token " << token << ", key " << key;
    }
  }
}

TEST(TokenChoice, WithoutTemperatureTheLikeliestComes) {
  EXPECT_EQ(choose_token(kLogits, {}, 1, 1), 1);
  EXPECT_EQ(choose_token(std::vector<float>{2, 5, 5}, {}, 1, 1), 1);  // of equals the first
}

TEST(TokenChoice, DrawsByTheProbabilities) {
  expect_shares({.temperature = 1}, {{0, 0.1}, {1, 0.4}, {2, 0.2}, {3, 0.3}});
  // At half the temperature by their squares, which are 0.01, 0.16, 0.04 and 0.09.
  expect_shares({.temperature = 0.5}, {{0, 1 / 30.0}, {1, 16 / 30.0}, {2, 4 / 30.0}, {3, 9 / 30.0}});
}

TEST(TokenChoice, LeavesOutWhatIsUnlikely) {
  expect_shares({.temperature = 1, .top_k = 2}, {{1, 4 / 7.0}, {3, 3 / 7.0}});
  expect_shares({.temperature = 1, .top_p = 0.75}, {{1, 4 / 9.0}, {3, 3 / 9.0}, {2, 2 / 9.0}});
  expect_shares({.temperature = 1, .top_p = 0}, {{1, 1.0}});
  expect_shares({.temperature = 1, .top_k = 100}, {{0, 0.1}, {1, 0.4}, {2, 0.2}, {3, 0.3}});
}

TEST(TokenChoice, IsAFunctionOfKeyAndNumber) {
  std::vector<int32_t> one, again, other;
  for (uint64_t i = 0; i < 64; ++i) {
    one.push_back(choose_token(kLogits, {.temperature = 1}, 5, i));
    again.push_back(choose_token(kLogits, {.temperature = 1}, 5, i));
    other.push_back(choose_token(kLogits, {.temperature = 1}, 6, i));
  }
  EXPECT_EQ(one, again);
  EXPECT_NE(one, other);
}

TEST(TokenChoice, NeverChoosesWhatIsNoNumber) {
  for (const double temperature : {0.0, 1.0}) {
    for (uint64_t i = 0; i < 100; ++i) {
      EXPECT_EQ(choose_token(std::vector<float>{kNan, 1, -kInfinity}, {.temperature = temperature}, 1, i), 1);
      EXPECT_EQ(choose_token(std::vector<float>{0, kInfinity, kNan}, {.temperature = temperature}, 1, i), 1);
    }
    EXPECT_EQ(choose_token(std::vector<float>{kNan, kNan}, {.temperature = temperature}, 1, 1), 0);
  }
}

}  // namespace
}  // namespace penstock::trainer
