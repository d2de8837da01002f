#include "tiering/plan/rate_watch.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

constexpr double kExpected = 2;  // GB/s

// A step that moves 1 GB at so many GB/s.
DrivesUnderLoad at(double gbps) { return {0.6e9, 0.4e9, 1 / gbps}; }

TEST(RateWatch, SpeaksOnceRatesWereOffByMoreThanAQuarterForSomeSteps) {
  RateWatch watch({.steps = 3});
  EXPECT_FALSE(watch.learn(kExpected, at(2)));
  EXPECT_FALSE(watch.learn(kExpected, at(1.2)));
  EXPECT_FALSE(watch.learn(kExpected, at(0.5)));
  const std::optional<double> share = watch.learn(kExpected, at(0.6));
  ASSERT_TRUE(share);
  EXPECT_DOUBLE_EQ(*share, 0.3);  // the median
  EXPECT_FALSE(watch.learn(kExpected, at(0.6))) << "it starts anew";
}

TEST(RateWatch, StaysSilentAboutLessThanThat) {
  RateWatch watch({.steps = 2});
  for (double gbps : {1.6, 2.4, 1.6, 1.0, 2.0, 1.0, 3.0, 1.0, 3.0}) EXPECT_FALSE(watch.learn(kExpected, at(gbps)));
}

TEST(RateWatch, NoticesDrivesThatHaveBecomeFaster) {
  RateWatch watch({.steps = 2});
  EXPECT_FALSE(watch.learn(kExpected, at(6)));
  EXPECT_DOUBLE_EQ(watch.learn(kExpected, at(6)).value_or(0), 3);
}

TEST(RateWatch, IgnoresStepsThatMoveTooLittleAndMachinesWithoutRates) {
  RateWatch watch({.steps = 1, .least_bytes = 2'000'000'000});
  EXPECT_FALSE(watch.learn(kExpected, at(0.1)));
  RateWatch any({.steps = 1, .least_bytes = 0});
  EXPECT_FALSE(any.learn(kExpected, {}));
  EXPECT_FALSE(any.learn(0, at(0.1)));
  EXPECT_TRUE(any.learn(kExpected, at(0.1)));
}

}  // namespace
}  // namespace penstock
