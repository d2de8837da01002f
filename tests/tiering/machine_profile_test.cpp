#include "tiering/machine_profile.h"

#include <gtest/gtest.h>

#include "tiering/tier.h"

namespace penstock {
namespace {

TEST(MemoryCurve, FollowsItsPointsByPowersOfTwoAndStaysAtItsEnds) {
  const MemoryCurve curve({{64 * kMiB, 0.8}, {16 * kMiB, 1.0}});
  EXPECT_DOUBLE_EQ(curve.share(kMiB), 1.0);
  EXPECT_DOUBLE_EQ(curve.share(16 * kMiB), 1.0);
  EXPECT_DOUBLE_EQ(curve.share(32 * kMiB), 0.9);
  EXPECT_DOUBLE_EQ(curve.share(64 * kMiB), 0.8);
  EXPECT_DOUBLE_EQ(curve.share(kGiB), 0.8);
  EXPECT_DOUBLE_EQ(MemoryCurve().share(kGiB), 1.0);
}

TEST(MachineProfile, ReadsBackWhatItWrote) {
  MachineProfile profile = shipped_profiles().front();
  for (DriveRates& drive : profile.drives) drive.latency_s = 0.5;  // in microseconds without a remainder
  profile.drives[0].by_memory = MemoryCurve({{16 * kMiB, 1.0}, {64 * kMiB, 0.5}});
  const std::string json = to_json(profile);
  Result<MachineProfile> read = parse_machine_profile(json);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(to_json(*read), json);
  // Of two equal drives one is halved.
  EXPECT_DOUBLE_EQ(read->share_by_memory(kGiB), 0.75);
}

TEST(MachineProfile, RefusesACurveThatIsNone) {
  for (const char* curve : {"[[16, 2.0]]", "[[0, 1.0]]", "[[16]]", "[16, 1]", "{\"16\": 1}"}) {
    Result<MachineProfile> read =
        parse_machine_profile(text("{\"drives\": [{\"mix_curve\": [[0.5, 3.0]], \"rate_by_memory\": ", curve, "}]}"));
    EXPECT_EQ(read.status().code(), Code::kUsage) << curve;
  }
}

}  // namespace
}  // namespace penstock
