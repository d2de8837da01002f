#include <sstream>

#include "aio/drive_info.h"
#include "tests/fuzz/target.h"
#include "tests/fuzz/targets/scratch.h"

namespace penstock::fuzz {
namespace {

constexpr std::string_view kFiles[] = {"nvme0n1/dev",
                                       "nvme0n1/device/model",
                                       "nvme0n1/device/current_link_speed",
                                       "nvme0n1/device/hwmon/hwmon0/temp1_input",
                                       "nvme0n1/queue/rotational",
                                       "nvme0n1/queue/scheduler",
                                       "nvme0n1/queue/nr_requests",
                                       "nvme0n1/queue/max_sectors_kb"};

// What sysfs tells of the disk; then the table of mounts.
std::vector<Bytes> seeds() {
  return {input_of_files(
              {"259:0\n", "Some Drive  \n", "32.0 GT/s PCIe\n", "38850\n", "0\n", "[none] mq-deadline\n", "1023\n",
               "128\n"},
              "36 35 98:0 /root /mnt/a rw,noatime master:1 - ext4 /dev/sda rw\n"
              "37 35 0:32 / / rw - overlay overlay rw\n38 36 98:1 / /mnt/a\\040b rw shared:2 - xfs /dev/loop0 rw\n"),
          Bytes()};
}

std::string run(std::span<const std::byte> input) {
  static const aio::ScratchFolder scratch(quick_folder());
  const std::span<const std::byte> rest = write_files(scratch, kFiles, input);
  aio::DriveInfo info;
  aio::describe_disk(scratch / "nvme0n1", info);
  if (info.device != "nvme0n1") return "another drive";
  if (info.request_bytes_max > kGiB) return "requests of more than there are";
  std::istringstream mounts(text_of(rest));
  const std::string path = "/mnt/a b/model";
  const aio::Mount mount = aio::mount_in(mounts, path);
  return mount.point.empty() || path.starts_with(mount.point) ? "" : "a mount that does not hold the path";
}

constexpr std::string_view kWords[] = {
    "/", "/mnt/a", "\\040", "\\", " - ", "ext4", "\n", ":", "[", "]", std::string_view("\0", 1), " ", "-", "x"};

}  // namespace

const Target drive_files{.name = "drive_files", .seeds = seeds, .run = run, .words = kWords, .rounds = 1500};

}  // namespace penstock::fuzz
