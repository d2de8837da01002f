#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "gpu/host_device.h"
#include "tiering/tier.h"
#include "tools/doctor/checks.h"
#include "tools/doctor/device_update_rate.h"
#include "tools/doctor/measured_rates.h"
#include "tools/system/limits.h"

namespace penstock::tools {
namespace {

namespace fs = std::filesystem;

// A made-up /proc and /sys.
class FakeSystem : public testing::Test {
 protected:
  FakeSystem() {
    std::string name = (fs::temp_directory_path() / "penstock-doctor-XXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~FakeSystem() override { fs::remove_all(root_); }

  void file(const std::string& path, const std::string& content) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << content;
  }
  SystemFiles files() const { return SystemFiles(root_); }
  static Finding of(const Findings& findings, const std::string& subject) {
    for (const Finding& finding : findings) {
      if (finding.subject == subject) return finding;
    }
    ADD_FAILURE() << "no finding about " << subject;
    return {};
  }

 private:
  std::string root_;
};

TEST_F(FakeSystem, SmallestLimitOfNestedGroupsCounts) {
  file("/proc/self/cgroup", "0::/outer/inner\n");
  file("/sys/fs/cgroup/outer/inner/memory.max", "max\n");
  file("/sys/fs/cgroup/outer/memory.max", "2147483648\n");
  file("/sys/fs/cgroup/memory.max", "8589934592\n");
  file("/sys/fs/cgroup/outer/inner/cpu.max", "150000 100000\n");
  file("/sys/fs/cgroup/outer/cpu.max", "max 100000\n");
  file("/sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_EQ(cgroup_memory_limit_bytes(files()), 2 * kGiB);
  EXPECT_EQ(cgroup_cpu_limit_cores(files()), 1.5);
}

TEST_F(FakeSystem, NonsenseIsNoLimit) {
  file("/proc/self/cgroup", "0::outer/inner\n1:memory:inner\n");  // without the slash that the kernel begins with
  file("/sys/fs/cgroup/memory.max", "2147483648\n");
  file("/proc/meminfo", "MemTotal: 99999999999999999999999 kB\nMemFree: 18014398509481984 kB\nMemAvailable: x\n");
  EXPECT_EQ(cgroup_memory_limit_bytes(files()), 2 * kGiB);
  for (const char* key : {"MemTotal:", "MemFree:", "MemAvailable:"}) EXPECT_EQ(meminfo_bytes(files(), key), 0u) << key;
  for (const char* limit : {"-5 100000", "inf 100000", "nan 100000", "100000 0", "1e300 1e-300", "100000"}) {
    file("/sys/fs/cgroup/cpu.max", limit);
    EXPECT_FALSE(cgroup_cpu_limit_cores(files())) << limit;
  }
}

TEST_F(FakeSystem, FirstVersionOfCgroupsIsReadToo) {
  file("/proc/self/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job\n");
  file("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n");
  file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  file("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n");
  file("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_memory_limit_bytes(files()), kGiB);
  EXPECT_EQ(cgroup_cpu_limit_cores(files()), 0.5);
}

TEST_F(FakeSystem, NoLimitIsNoLimit) {
  file("/proc/self/cgroup", "0::/\n");
  file("/sys/fs/cgroup/memory.max", "max\n");
  EXPECT_FALSE(cgroup_memory_limit_bytes(files()));
  EXPECT_FALSE(cgroup_cpu_limit_cores(files()));
}

TEST_F(FakeSystem, GroupSeenFromInsideAContainerIsTheMountItself) {
  file("/proc/self/cgroup", "0::/docker/0123\n");
  file("/sys/fs/cgroup/memory.max", "536870912\n");
  EXPECT_EQ(cgroup_memory_limit_bytes(files()), 512 * kMiB);
}

TEST_F(FakeSystem, HugePagesThatAreOffComeWithTheirCommand) {
  file("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  const Finding finding = of(check_memory(files()), "transparent huge pages");
  EXPECT_EQ(finding.level, Level::note);
  EXPECT_EQ(finding.found, "never");
  EXPECT_EQ(finding.fix, "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled");
}

TEST_F(FakeSystem, LimitBelowTheMemoryIsNamed) {
  file("/proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n");
  file("/proc/self/cgroup", "0::/\n");
  file("/sys/fs/cgroup/memory.max", "4294967296\n");
  const Finding finding = of(check_memory(files()), "memory limit");
  EXPECT_EQ(finding.level, Level::note);
  EXPECT_EQ(finding.found, "the cgroup allows 4.00 GiB of 16.00 GiB");
  // However little of it is available now.
  file("/proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    1048576 kB\n");
  EXPECT_EQ(of(check_memory(files()), "memory limit").level, Level::note);
}

TEST_F(FakeSystem, EveryFindingThatIsNotGoodSaysWhatFollows) {
  for (const Findings& findings :
       {check_kernel(files()), check_memory(files()), check_cpu(files()), check_cuda(files())}) {
    for (const Finding& finding : findings) {
      EXPECT_FALSE(finding.found.empty()) << finding.subject;
      EXPECT_TRUE(finding.level == Level::good || !finding.follows.empty()) << finding.subject;
    }
  }
}

TEST(CopyRates, AreThoseOfTheLinkEachWay) {
  auto device = gpu::open_host_device(
      {.arena_bytes = 8 * kMiB, .host_to_device_bytes_per_s = 400'000'000, .device_to_host_bytes_per_s = 50'000'000});
  ASSERT_TRUE(device.ok());
  const Result<CopyRates> rates = measure_copies(**device, 8 * kMiB, 3);
  ASSERT_TRUE(rates.ok()) << rates.status().message();
  // No faster than the link; how much slower depends on what else the machine does.
  EXPECT_LE(rates->host_to_device_gbps, 0.4);
  EXPECT_LE(rates->device_to_host_gbps, 0.05);
  EXPECT_GT(rates->host_to_device_gbps, 1.5 * rates->device_to_host_gbps);
}

TEST(DeviceUpdateRate, IsFoundOnAnyDevice) {
  auto device = gpu::open_host_device({.arena_bytes = 8 * kMiB});
  ASSERT_TRUE(device.ok());
  const Result<double> gbps = measure_device_updates(**device, 2);
  ASSERT_TRUE(gbps.ok()) << gbps.status().message();
  EXPECT_GT(*gbps, 1e-4);
  EXPECT_LT(*gbps, 1e4);
}

TEST(MeasuredRates, LeaveInTheProfileWhatWasNotMeasured) {
  MachineProfile profile;
  profile.device_flops = 7e12;
  profile.host_to_device_gbps = 20;
  profile.drives.resize(1);
  MeasuredRates rates;
  rates.update_gbps = 9;
  put_rates(profile, rates);
  EXPECT_EQ(profile.host_gbps, 9);
  EXPECT_EQ(profile.device_flops, 7e12);
  EXPECT_EQ(profile.host_to_device_gbps, 20);
  EXPECT_EQ(profile.drives.size(), 1u);
  rates.compute = ComputeRate{.flops = 1e12};
  rates.devices = 2;
  rates.device_bytes = kGiB;
  rates.copies = CopyRates{.host_to_device_gbps = 25, .device_to_host_gbps = 24};
  rates.device_update_gbps = 900;
  put_rates(profile, rates);
  EXPECT_EQ(profile.device_flops, 1e12);
  EXPECT_EQ(profile.devices, 2u);
  EXPECT_EQ(profile.device_bytes, kGiB);
  EXPECT_EQ(profile.host_to_device_gbps, 25);
  EXPECT_EQ(profile.device_to_host_gbps, 24);
  EXPECT_EQ(profile.device_gbps, 900);
}

}  // namespace
}  // namespace penstock::tools
