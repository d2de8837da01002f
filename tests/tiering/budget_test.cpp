#include "tiering/budget.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(Budget, AdvisesWhatLaterLinesNeedBesides) {
  Budget budget(Tier::host, 100 * kMiB);
  ASSERT_TRUE(budget.take("windows", 90 * kMiB).ok());
  const Status refused = budget.take("activations", 30 * kMiB, 200 * kMiB);
  EXPECT_EQ(refused.code(), Code::kDoesNotFit);
  EXPECT_EQ(refused.message(),
            "host budget: activations needs 31457280 B (30.00 MiB), 10485760 B of 104857600 B are free");
  const std::string before = "raise --budget host= by at least ";
  ASSERT_TRUE(refused.remedy().starts_with(before)) << refused.remedy();
  EXPECT_GE(std::stod(refused.remedy().substr(before.size())), 220) << refused.remedy();
  EXPECT_LT(std::stod(refused.remedy().substr(before.size())), 235) << refused.remedy();
  EXPECT_TRUE(budget.take("activations", 10 * kMiB, 200 * kMiB).ok()) << "later lines are asked for later";
}

}  // namespace
}  // namespace penstock
