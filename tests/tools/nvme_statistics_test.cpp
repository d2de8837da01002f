#include <gtest/gtest.h>

#include "tools/nvme/latency_histogram.h"
#include "tools/nvme/statistics.h"
#include "tools/nvme/steady.h"

namespace penstock::tools {
namespace {

TEST(LatencyHistogram, PercentilesAreWithinSixPercent) {
  for (uint64_t latency :
       {uint64_t{1}, uint64_t{15}, uint64_t{16}, uint64_t{1000}, uint64_t{123456}, uint64_t{98765432100}}) {
    LatencyHistogram histogram;
    histogram.add(latency);
    const double microseconds = static_cast<double>(latency) / 1e3;
    EXPECT_GE(histogram.percentile_us(0.5), microseconds * 0.999);
    EXPECT_LE(histogram.percentile_us(0.5), microseconds * 1.0626);
  }
}

TEST(LatencyHistogram, FindsPercentilesAmongMany) {
  LatencyHistogram histogram;
  for (uint64_t microsecond = 1; microsecond <= 1000; ++microsecond) histogram.add(microsecond * 1000);
  EXPECT_NEAR(histogram.percentile_us(0.5), 500, 35);
  EXPECT_NEAR(histogram.percentile_us(0.99), 990, 65);
  EXPECT_NEAR(histogram.percentile_us(1), 1000, 65);
  uint64_t counted = 0;
  for (const auto& [below, count] : histogram.by_powers_of_two()) counted += count;
  EXPECT_EQ(counted, 1000u);
  EXPECT_EQ(LatencyHistogram().percentile_us(0.5), 0);
}

TEST(LatencyHistogram, FindsPercentilesAmongFew) {
  LatencyHistogram histogram;
  for (uint64_t microsecond : {10, 20, 40, 80, 160}) histogram.add(microsecond * 1000);
  EXPECT_NEAR(histogram.percentile_us(0.5), 40, 3) << "the third of five";
  EXPECT_NEAR(histogram.percentile_us(0.6), 40, 3);
  EXPECT_NEAR(histogram.percentile_us(0.61), 80, 6);
  EXPECT_EQ(histogram.percentile_us(0.99), 160);
  EXPECT_EQ(histogram.percentile_us(0.999), 160);
}

TEST(LatencyHistogram, MeanAndMaximumAreExactAlsoOfTwoTogether) {
  LatencyHistogram reads, writes;
  EXPECT_EQ(reads.mean_us(), 0);
  EXPECT_EQ(reads.max_us(), 0);
  for (uint64_t nanoseconds : {1001, 1003, 5000}) reads.add(nanoseconds);
  EXPECT_DOUBLE_EQ(reads.mean_us(), 7.004 / 3);
  EXPECT_DOUBLE_EQ(reads.max_us(), 5);
  writes.add(9000);
  writes.add(reads);
  EXPECT_EQ(writes.count(), 4u);
  EXPECT_DOUBLE_EQ(writes.mean_us(), 16.004 / 4);
  EXPECT_DOUBLE_EQ(writes.max_us(), 9);
  EXPECT_NEAR(writes.percentile_us(0.5), 1.003, 0.07);
  EXPECT_DOUBLE_EQ(writes.percentile_us(1), 9) << "no percentile is above the maximum";
}

TEST(Median, IsTheMiddle) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
}

TEST(PlateauFinder, FindsWhereTheFastCacheEnded) {
  PlateauFinder finder;
  bool found = false;
  for (int i = 0; i < 20; ++i) found = finder.add(5.0 + 0.1 * (i % 2)) || found;
  EXPECT_FALSE(found) << "a plateau before any fall may be the cache itself";
  for (int i = 0; i < 8 && !found; ++i) found = finder.add(1.5);
  EXPECT_TRUE(found);
  EXPECT_NEAR(finder.burst_gbps(), 5, 0.1);
  EXPECT_NEAR(finder.recent_gbps(), 1.5, 0.01);
  ASSERT_TRUE(finder.fell_after());
  EXPECT_NEAR(static_cast<double>(*finder.fell_after()), 20, 3);
}

TEST(PlateauFinder, ForgetsADipThatHasPassed) {
  PlateauFinder finder;
  auto add = [&](const std::vector<double>& rates) {
    bool found = false;
    for (double rate : rates) found = finder.add(rate) || found;
    return found;
  };
  EXPECT_FALSE(add({3, 3, 3, 3, 3}));
  EXPECT_FALSE(add({1, 2, 1, 2, 1}));  // no plateau: a neighbour's
  EXPECT_TRUE(finder.fell_after());
  EXPECT_FALSE(add(std::vector<double>(10, 3)));
  EXPECT_FALSE(finder.fell_after());
  EXPECT_TRUE(add(std::vector<double>(5, 1)));
  ASSERT_TRUE(finder.fell_after());
  EXPECT_GE(*finder.fell_after(), 16u);
}

TEST(PlateauFinder, DoesNotStopWhileTheRateStillFalls) {
  PlateauFinder finder;
  double rate = 5;
  for (int i = 0; i < 30; ++i) EXPECT_FALSE(finder.add(rate *= 0.9));
}

}  // namespace
}  // namespace penstock::tools
