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

TEST(Budget, AdvisesNoLessThanIsMissingOnceItIsWrittenOut) {
  for (const uint64_t missing : {uint64_t{1}, 3 * kKiB + 1, kMiB - 1, 13 * kMiB + 3200, 16 * kMiB - 1, 16 * kMiB + 1,
                                 kGiB - 1, kGiB + 7 * kMiB + 1, 300 * kGiB + 1}) {
    const std::string remedy = Budget(Tier::host, 0).take("windows", missing).remedy();
    const size_t digits = remedy.find_first_of("0123456789");
    ASSERT_NE(digits, std::string::npos) << remedy;
    size_t length = 0;
    const double number = std::stod(remedy.substr(digits), &length);
    const std::string unit = remedy.substr(digits + length + 1);
    const uint64_t unit_bytes = unit == "B" ? 1 : unit == "KiB" ? kKiB : unit == "MiB" ? kMiB : kGiB;
    EXPECT_GE(number * static_cast<double>(unit_bytes), static_cast<double>(missing)) << remedy;
  }
}

}  // namespace
}  // namespace penstock
