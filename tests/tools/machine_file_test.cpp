#include "tiering/plan/machine_profile.h"

#include <gtest/gtest.h>

#include "tiering/tier.h"
#include "tools/machine/machine_file.h"
#include "tools/machine/shipped_machines.h"

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

// Drives get bytes of a step in the proportion of these, so they must be for the mixture that a step moves.
TEST(MachineProfile, RatesADriveByTheReadsAndWritesOfAStep) {
  MachineProfile profile;
  profile.drives.resize(2);
  profile.drives[0].burst = MixCurve({{0, 1}, {1, 12}});
  profile.drives[1].burst = MixCurve({{0, 12}, {1, 1}});
  const std::vector<double> rates = profile.step_rates(2);
  ASSERT_EQ(rates.size(), 2u);
  EXPECT_DOUBLE_EQ(rates[0], 6);  // 10 of 22 bytes are read
  EXPECT_DOUBLE_EQ(rates[1], 7);
  EXPECT_TRUE(profile.step_rates(3).empty()) << "nobody knows the third";
}

TEST(MachineProfile, RefusesACurveThatIsNone) {
  for (const char* curve : {"[[16, 2.0]]", "[[0, 1.0]]", "[[16]]", "[16, 1]", "{\"16\": 1}"}) {
    Result<MachineProfile> read =
        parse_machine_profile(text("{\"drives\": [{\"mix_curve\": [[0.5, 3.0]], \"rate_by_memory\": ", curve, "}]}"));
    EXPECT_EQ(read.status().code(), Code::kUsage) << curve;
  }
}

TEST(MachineProfile, RefusesADriveThatIsNoObject) {
  for (const char* drive : {"3", "null", "[]", "\"/mnt/a\"", "{}", "{\"mix_curve\": 3}"}) {
    EXPECT_EQ(parse_machine_profile(text("{\"drives\": [", drive, "]}")).status().code(), Code::kUsage) << drive;
  }
}

// What is so small that a share of it is nothing, so large that it does not fit, or negative.
TEST(MachineProfile, RefusesNumbersThatNoMachineHas) {
  for (const char* field :
       {"\"device_flops\": -1", "\"device_flops\": 1e-300", "\"host_gbps\": 1e300", "\"host_gbps\": 1e-320",
        "\"devices\": 1e9", "\"threads\": -3", "\"host_bytes\": -1", "\"host_bytes\": 1e300",
        "\"drives\": [{\"mix_curve\": [[0.5, 1e-320]]}]", "\"drives\": [{\"mix_curve\": [[0.5, 3]], \"flush_s\": -1}]",
        "\"drives\": [{\"mix_curve\": [[0.5, 3]], \"rate_by_memory\": [[16, 1e-320]]}]",
        "\"drives\": [{\"mix_curve\": [[0.5, 3]], \"latency_us\": {\"p50\": 1e300}}]"}) {
    Result<MachineProfile> read = parse_machine_profile(text("{", field, "}"));
    ASSERT_FALSE(read.ok()) << field;
    EXPECT_EQ(read.status().code(), Code::kUsage) << field;
    EXPECT_FALSE(read.status().remedy().empty()) << field;
  }
}

TEST(MachineProfile, CountsNoMoreBytesThanADoubleDoes) {
  // As some network file systems answer.
  Result<MachineProfile> read =
      parse_machine_profile("{\"drives\": [{\"mix_curve\": [[0.5, 3]], \"free_bytes\": 18446744073709551615}]}");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->drives[0].capacity_bytes, uint64_t{1} << 53);
}

TEST(MachineProfile, RefusesMoreDrivesAndPointsThanAMachineHas) {
  std::string drives, points;
  for (int i = 0; i < 1025; ++i) drives += text(i ? "," : "", "{\"mix_curve\": [[0.5, 3]]}");
  for (int i = 0; i < 257; ++i) points += text(i ? "," : "", "[0.5, 3]");
  EXPECT_EQ(parse_machine_profile(text("{\"drives\": [", drives, "]}")).status().code(), Code::kUsage);
  EXPECT_EQ(parse_machine_profile(text("{\"drives\": [{\"mix_curve\": [", points, "]}]}")).status().code(),
            Code::kUsage);
}

TEST(MachineProfile, WritesAFolderOfAnyName) {
  MachineProfile profile = shipped_profiles().front();
  profile.drives[0].path = "/mnt/\xff\xfe";
  EXPECT_TRUE(parse_machine_profile(to_json(profile)).ok());
}

// A latency in microseconds would otherwise drift each time that a profile is read and written again.
TEST(MachineProfile, StaysTheSameHoweverOftenItIsWritten) {
  const std::string once = to_json(*parse_machine_profile(to_json(shipped_profiles().front())));
  EXPECT_EQ(to_json(*parse_machine_profile(once)), once);
  EXPECT_NE(once.find("\"p50\": 100.0"), std::string::npos) << once;
}

}  // namespace
}  // namespace penstock
