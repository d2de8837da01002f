#include "tools/update/profiled_machine.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "aio/drive_info.h"
#include "tests/aio/test_files.h"
#include "tools/nvme/profile_file.h"

namespace penstock::tools {
namespace {

// A folder on the drive of the build, another on a file system beside it, and a profile that the test fills.
class ProfiledMachine : public testing::Test {
 protected:
  ProfiledMachine()
      : here_(std::filesystem::current_path()),
        path_(here_ / "profile.json"),
        device_(aio::describe_drive(here_.path()).value()) {
    profile_.name = "of a test";
    profile_.devices = 8;
    profile_.host_gbps = 20;
    profile_.network_gbps = 3;
  }

  void knows(const std::string& path, const std::string& device, double gbps) {
    DriveRates drive;
    drive.path = path;
    drive.device = device;
    drive.burst = MixCurve::flat(gbps);
    put_drive(profile_, drive);
  }
  Result<MachineProfile> machine_for(const std::vector<std::string>& folders) {
    CHECK(save_profile(profile_, path_).ok());
    return machine_of_profile(path_, folders);
  }
  void expect_refusal(const std::string& why) {
    const Result<MachineProfile> machine = machine_for({here_.path()});
    ASSERT_FALSE(machine.ok()) << why;
    EXPECT_EQ(machine.status().code(), Code::kUsage);
    EXPECT_EQ(machine.status().message(), "use profile: " + path_ + ": " + why);
    EXPECT_NE(machine.status().remedy().find("--profile " + path_), std::string::npos) << machine.status().remedy();
  }

  const aio::ScratchFolder here_;
  const std::string path_;
  const aio::DriveInfo device_;
  MachineProfile profile_;
};

TEST_F(ProfiledMachine, HasTheFoldersDrivesInTheirOrderAndTheProcessors) {
  if (!std::filesystem::is_directory("/dev/shm") || aio::describe_drive("/dev/shm")->device == device_.device) {
    GTEST_SKIP() << "needs two file systems that are not on one drive";
  }
  const aio::ScratchFolder there("/dev/shm");
  knows("/gone", "nvme77n1", 1);
  knows(here_.path(), device_.device, 2);
  knows("/dev/shm", "", 3);
  const auto machine = machine_for({there.path(), here_.path()});
  ASSERT_TRUE(machine.ok()) << machine.status().message();
  EXPECT_EQ(machine->host_gbps, 20);
  EXPECT_EQ(machine->network_gbps, 3);
  EXPECT_EQ(machine->devices, 0u) << "a device would be planned for, and updates have none";
  ASSERT_EQ(machine->drives.size(), 2u);
  EXPECT_EQ(machine->drives[0].burst.gbps(0.5), 3);
  EXPECT_EQ(machine->drives[0].path, there.path());
  EXPECT_EQ(machine->drives[1].burst.gbps(0.5), 2);
}

// Ranks share weights in host memory, whatever the links of the machine's devices bring.
TEST_F(ProfiledMachine, HasTheRateBetweenRanksWhereItIsNotThatOfDevices) {
  knows(here_.path(), device_.device, 2);
  profile_.collective_gbps = 350;
  EXPECT_EQ(machine_for({here_.path()})->collective_gbps, 0);
  profile_.devices = 0;
  EXPECT_EQ(machine_for({here_.path()})->collective_gbps, 350);
}

TEST_F(ProfiledMachine, KnowsADriveByItsDeviceWhereTheProbedFolderIsGone) {
  if (device_.device.empty() || !device_.beneath.empty()) GTEST_SKIP() << "needs a folder right on a drive";
  knows("/gone", device_.device, 2);
  const auto machine = machine_for({here_.path()});
  ASSERT_TRUE(machine.ok()) << machine.status().message();
  EXPECT_EQ(machine->drives.at(0).burst.gbps(0), 2);
}

TEST_F(ProfiledMachine, IsRefusedWhereTheDriveIsAnotherOne) {
  knows(here_.path(), "nvme77n1", 2);
  expect_refusal("has nvme77n1 at " + here_.path() + ", where " +
                 (device_.device.empty() ? "no device" : device_.device) + " is now");
}

TEST_F(ProfiledMachine, IsRefusedWhereADriveIsNotKnown) {
  const std::string device = device_.device.empty() ? "no device" : device_.device;
  expect_refusal("lacks the drive of " + here_.path() + " (" + device + ")");
  knows("/gone", "nvme77n1", 2);
  expect_refusal("lacks the drive of " + here_.path() + " (" + device + ")");
}

TEST_F(ProfiledMachine, IsRefusedWithoutTheRateOfUpdates) {
  knows(here_.path(), device_.device, 2);
  profile_.host_gbps = 0;
  expect_refusal("lacks host_gbps, the rate of updates");
}

TEST_F(ProfiledMachine, IsRefusedWhereThereIsNoProfile) {
  for (const std::string& path : {here_ / "absent", here_.path()}) {
    const auto machine = machine_of_profile(path, {here_.path()});
    ASSERT_FALSE(machine.ok());
    EXPECT_EQ(machine.status().code(), Code::kUsage);
    EXPECT_TRUE(machine.status().message().starts_with("read profile: " + path + ": ")) << machine.status().message();
    EXPECT_NE(machine.status().remedy().find("leave --machine out"), std::string::npos);
  }
}

}  // namespace
}  // namespace penstock::tools
