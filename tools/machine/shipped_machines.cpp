#include "tools/machine/shipped_machines.h"

#include "tiering/tier.h"

namespace penstock {

std::vector<MachineProfile> shipped_profiles() {
  auto drives = [](int count, double read, double write, double endurance_tb) {
    DriveRates drive;
    drive.sustained = MixCurve({{0.0, write}, {0.5, 2 / (1 / read + 1 / write)}, {1.0, read}});
    drive.burst = *drive.sustained;
    drive.capacity_bytes = uint64_t{4'000'000'000'000};
    drive.endurance_bytes = endurance_tb * 1e12;
    std::vector<DriveRates> all(count, drive);
    for (int i = 0; i < count; ++i) all[i].path = text("/mnt/nvme", i);
    return all;
  };
  MachineProfile desktop{.name = "rtx4090-2gen4",
                         .drives = drives(2, 7, 5, 2400),
                         .devices = 1,
                         .device_flops = 150e12,
                         .device_bytes = 24 * kGiB,
                         .device_gbps = 850,
                         .host_to_device_gbps = 25,
                         .device_to_host_gbps = 25,
                         .collective_gbps = 0,
                         .host_gbps = 60,
                         .host_bytes = 128 * kGiB,
                         .threads = 16};
  MachineProfile h100{.name = "h100-4gen4",
                      .drives = drives(4, 6.5, 4.5, 7000),
                      .devices = 1,
                      .device_flops = 450e12,
                      .device_bytes = 80 * kGiB,
                      .device_gbps = 2800,
                      .host_to_device_gbps = 50,
                      .device_to_host_gbps = 50,
                      .collective_gbps = 0,
                      .host_gbps = 300,
                      .host_bytes = 512 * kGiB,
                      .threads = 48};
  MachineProfile h200{.name = "8h200-8gen5",
                      .drives = drives(8, 11.25, 7, 14000),
                      .devices = 8,
                      .device_flops = 550e12,
                      .device_bytes = 141 * kGiB,
                      .device_gbps = 4000,
                      .host_to_device_gbps = 50,
                      .device_to_host_gbps = 50,
                      .collective_gbps = 350,
                      .host_gbps = 450,
                      .host_bytes = 2048 * kGiB,
                      .threads = 192};
  MachineProfile cpu{.name = "cpu-2core",
                     .drives = drives(1, 3.6, 4.6, 0),
                     .devices = 0,
                     .device_flops = 0.25e12,
                     .device_bytes = 0,
                     .host_to_device_gbps = 0,
                     .device_to_host_gbps = 0,
                     .collective_gbps = 0,
                     .host_gbps = 60,
                     .host_bytes = 24 * kGiB,
                     .threads = 2};
  return {desktop, h100, h200, cpu};
}

}  // namespace penstock
