#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/tools/on_a_drive.h"
#include "tools/nvme/profile_file.h"
#include "tools/plan/machine_choice.h"
#include "tools/system/limits.h"

namespace penstock::tools {
namespace {

namespace fs = std::filesystem;

// Before minutes of measuring, and without making the folder of a path that was mistyped.
TEST_F(OnADrive, WhereNoProfileCanBeKeptIsSaidAtOnce) {
  const auto refused = profile_path_to_write(folder_ + "/absent/profile.json");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kUsage);
  EXPECT_FALSE(fs::exists(folder_ + "/absent"));
  EXPECT_EQ(*profile_path_to_write(folder_ + "/profile.json"), folder_ + "/profile.json");
}

TEST_F(OnADrive, ProfileKeepsWhatAnEarlierRunFound) {
  const std::string path = folder_ + "/deep/er/profile.json";
  auto profile = load_or_begin_profile(path);
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_GT(profile->host_bytes, 0u);
  DriveRates drive;
  drive.path = "/mnt/a";
  drive.device = "nvme0n1";
  drive.burst = MixCurve({{0, 4}, {1, 6}});
  drive.sustained = MixCurve({{0, 2}, {1, 6}});
  drive.endurance_bytes = 6e14;
  put_drive(*profile, drive);
  ASSERT_TRUE(save_profile(*profile, path).ok());

  auto again = load_or_begin_profile(path);
  ASSERT_TRUE(again.ok());
  DriveRates fresh = drive;
  fresh.burst = MixCurve::flat(5);
  fresh.sustained.reset();
  fresh.endurance_bytes = 0;
  put_drive(*again, fresh);
  ASSERT_EQ(again->drives.size(), 1u);
  EXPECT_EQ(again->drives[0].burst.gbps(0), 5);
  ASSERT_TRUE(again->drives[0].sustained);
  EXPECT_EQ(again->drives[0].sustained->gbps(0), 2);
  EXPECT_EQ(again->drives[0].endurance_bytes, 6e14);

  fresh.device = "nvme9n1";  // another drive at the same path
  put_drive(*again, fresh);
  EXPECT_FALSE(again->drives[0].sustained);
  EXPECT_EQ(again->drives[0].endurance_bytes, 0);
}

// A profile has a folder for each that was probed; two on one drive do not make it twice as fast.
TEST_F(OnADrive, APlanCountsADriveOnceHoweverManyOfItsFoldersTheProfileHas) {
  MachineProfile profile;
  profile.name = "of a test";
  for (const auto& [path, device] : {std::pair("/mnt/a", "nvme0n1"),
                                     {"/mnt/b", "nvme1n1"},
                                     {"/mnt/a/more", "nvme0n1"},
                                     {"/mnt/remote", ""},
                                     {"/mnt/another", ""}}) {
    DriveRates drive;
    drive.path = path;
    drive.device = device;
    drive.burst = MixCurve::flat(2);
    put_drive(profile, drive);
  }
  const std::string path = folder_ + "/profile.json";
  ASSERT_TRUE(save_profile(profile, path).ok());
  const auto machine = choose_machine(path);
  ASSERT_TRUE(machine.ok()) << machine.status().message();
  std::vector<std::string> paths;
  for (const DriveRates& drive : machine->drives) paths.push_back(drive.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"/mnt/a", "/mnt/b", "/mnt/remote", "/mnt/another"}));
}

TEST(Profile, HostIsThisMachineAndTheRestStays) {
  MachineProfile profile;
  profile.name = "of another day";
  profile.devices = 2;
  profile.device_flops = 1e12;
  put_host(profile, 20);
  EXPECT_NE(profile.name, "of another day");
  EXPECT_EQ(profile.threads, usable_processors());
  EXPECT_EQ(profile.host_bytes, usable_memory_bytes(SystemFiles()));
  EXPECT_EQ(profile.host_gbps, 20);
  EXPECT_EQ(profile.devices, 2u);
  EXPECT_EQ(profile.device_flops, 1e12);
}

TEST_F(OnADrive, FileThatIsNoProfileIsRefused) {
  const std::string path = folder_ + "/notes";
  for (const char* content :
       {"", "{}", "not json", "{\"schema\": \"penstock.machine/1\", \"drives\": [{\"mix_curve\": 3}]}"}) {
    std::ofstream(path) << content;
    const auto profile = load_or_begin_profile(path);
    ASSERT_FALSE(profile.ok()) << content;
    EXPECT_EQ(profile.status().code(), Code::kUsage);
  }
}

TEST_F(OnADrive, FileThatIsFarTooLongForAProfileIsNotRead) {
  const std::string path = folder_ + "/film";
  std::ofstream(path) << "\"penstock.machine/";
  fs::resize_file(path, uint64_t{1} << 40);
  const auto profile = load_or_begin_profile(path);
  ASSERT_FALSE(profile.ok());
  EXPECT_NE(profile.status().message().find("not a machine profile: 1099511627776 B"), std::string::npos)
      << profile.status().message();
}

}  // namespace
}  // namespace penstock::tools
