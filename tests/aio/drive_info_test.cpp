#include "aio/drive_info.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "aio/available_memory.h"
#include "tests/aio/test_files.h"
#include "tiering/tier.h"

namespace penstock::aio {
namespace {

void write_file(const std::filesystem::path& path, const std::string& content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << content;
}

TEST(DriveInfo, TellsWhatSysfsTells) {
  const ScratchFolder scratch;
  const std::filesystem::path disk = scratch / "nvme0n1";
  write_file(disk / "dev", "259:3\n");
  write_file(disk / "device/hwmon/hwmon0/temp1_input", "38850\n");
  write_file(disk / "queue/scheduler", "mq-deadline [none]\n");
  write_file(disk / "queue/max_sectors_kb", "128\n");
  DriveInfo info;
  describe_disk(disk, info);
  EXPECT_EQ(info.id, 259u << 20 | 3);
  EXPECT_EQ(info.temperature_celsius, 38.85);
  EXPECT_EQ(info.scheduler, "none");
  EXPECT_EQ(info.request_bytes_max, 128 * kKiB);
}

// Numbers that are none, and none at all: an empty folder, too.
TEST(DriveInfo, IsNotUpsetByNonsense) {
  for (const char* nonsense : {"", "x", ":", "[", "]x[", "-1", "99999999999999999999999"}) {
    const ScratchFolder scratch;
    const std::filesystem::path disk = scratch / "sda";
    for (const char* file : {"dev", "device/hwmon/hwmon0/temp1_input", "queue/scheduler", "queue/max_sectors_kb"}) {
      if (*nonsense != '\0') write_file(disk / file, nonsense);
    }
    DriveInfo info;
    describe_disk(disk, info);
    EXPECT_EQ(info.id, 0u) << nonsense;
    EXPECT_LE(info.request_bytes_max, kGiB) << nonsense;
  }
}

TEST(DriveInfo, FindsTheMountThatHoldsAPath) {
  const std::string mounts =
      "36 35 98:0 / / rw - ext4 /dev/sda rw\n37 36 98:1 / /mnt/a\\040b rw shared:2 - xfs /dev/sdb rw\n"
      "38 36 98:2 / /mnt/a rw - btrfs /dev/sdc rw\nnonsense\n";
  auto held_by = [&](const std::string& path) {
    std::istringstream in(mounts);
    return mount_in(in, path).file_system;
  };
  EXPECT_EQ(held_by("/mnt/a b/model"), "xfs");
  EXPECT_EQ(held_by("/mnt/a/model"), "btrfs");
  EXPECT_EQ(held_by("/mnt/abc"), "ext4");
}

TEST(AvailableMemory, IsTheLeastThatMachineAndGroupsLeave) {
  const ScratchFolder scratch;
  const std::filesystem::path root = scratch.path();
  write_file(root / "proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n");
  EXPECT_EQ(AvailableMemory::now(root).bytes, 4 * kGiB);
  EXPECT_EQ(AvailableMemory::at_most(root).bytes, 8 * kGiB) << "whatever others have";
  write_file(root / "proc/self/cgroup", "0::/job\n");
  write_file(root / "sys/fs/cgroup/job/memory.max", "3221225472\n");
  write_file(root / "sys/fs/cgroup/job/memory.current", "2147483648\n");
  write_file(root / "sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 1073741824\n");
  EXPECT_EQ(AvailableMemory::now(root).bytes, 2 * kGiB);
  EXPECT_EQ(AvailableMemory::now(root).limited_by, "the limit of control group /job");
  EXPECT_EQ(AvailableMemory::at_most(root).bytes, 3 * kGiB);
  // Files that were read twice; a library that is mapped stays.
  write_file(root / "sys/fs/cgroup/job/memory.stat",
             "anon 1\nfile_mapped 268435456\ninactive_file 536870912\nactive_file 805306368\n");
  EXPECT_EQ(AvailableMemory::now(root).bytes, 2 * kGiB);
  write_file(root / "sys/fs/cgroup/job/memory.stat",
             "inactive_file 18446744073709551615\nactive_file 805306368\nfile_mapped 1\n");
  EXPECT_EQ(AvailableMemory::now(root).bytes, 3 * kGiB);
  // More KiB than there are bytes to count them.
  write_file(root / "proc/meminfo", "MemAvailable: 18014398509481985 kB\n");
  EXPECT_EQ(AvailableMemory::now(root).bytes, 3 * kGiB);
}

// In a container the path may be the host's, where the mount begins at the container's group.
TEST(AvailableMemory, LooksAtEveryGroupUpToTheMountsOwn) {
  const ScratchFolder scratch;
  const std::filesystem::path root = scratch.path();
  write_file(root / "proc/meminfo", "MemAvailable: 67108864 kB\n");
  auto limit = [&](const std::string& group, uint64_t bytes) {
    write_file(root / "sys/fs/cgroup" / group / "memory.max", std::to_string(bytes) + "\n");
    write_file(root / "sys/fs/cgroup" / group / "memory.current", "0\n");
  };
  limit("", 3 * kGiB);
  for (const char* group : {"/", "/host/only", "/job/of/mine"}) {
    write_file(root / "proc/self/cgroup", std::string("0::") + group + "\n");
    EXPECT_EQ(AvailableMemory::now(root).bytes, 3 * kGiB) << group;
    EXPECT_EQ(AvailableMemory::now(root).limited_by, "the limit of control group /") << group;
  }
  limit("job/of/mine", 2 * kGiB);
  limit("job", kGiB);
  EXPECT_EQ(AvailableMemory::now(root).bytes, kGiB);
  EXPECT_EQ(AvailableMemory::now(root).limited_by, "the limit of control group /job");
}

TEST(AvailableMemory, CountsFreeHugePagesOf2MiBEach) {
  const ScratchFolder scratch;
  const std::filesystem::path root = scratch.path();
  EXPECT_EQ(free_huge_page_bytes(root), 0u) << "of a kernel without them";
  write_file(root / "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "15\n");
  EXPECT_EQ(free_huge_page_bytes(root), 30 * kMiB);
}

}  // namespace
}  // namespace penstock::aio
