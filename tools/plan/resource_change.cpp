#include "tools/plan/resource_change.h"

#include "tools/penstock/quantity.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kMoreHost = 32 * kGiB, kMoreDevice = 8 * kGiB;

}  // namespace

std::vector<ResourceChange> more_of_each(const Resources& now) {
  std::vector<ResourceChange> all;
  auto add = [&](std::string what) -> ResourceChange& {
    return all.emplace_back(ResourceChange{std::move(what), now.machine, now.asked});
  };
  MachineProfile& with_drive = add("drives: one more like the last").machine;
  with_drive.drives.push_back(now.machine.drives.back());
  add(text("host memory: ", bytes_text(kMoreHost), " more")).budgets.host_bytes = now.used.host_bytes + kMoreHost;
  add("updates on the CPU: twice as fast").machine.host_gbps *= 2;
  if (now.scope == StepScope::training) {
    ResourceChange& change = add("compute: twice as fast");
    change.compute_faster = 2;
    change.machine.device_flops *= 2;
  }
  if (now.nodes > 1) add("network: twice as fast").machine.network_gbps *= 2;
  if (now.machine.devices == 0) return all;

  add(text("device memory: ", bytes_text(kMoreDevice), " more of each")).budgets.device_bytes =
      now.used.device_bytes + kMoreDevice;
  if (now.machine.host_to_device_gbps > 0) {
    MachineProfile& faster = add("links to devices: twice as fast").machine;
    faster.host_to_device_gbps *= 2;
    faster.device_to_host_gbps *= 2;
  }
  if (now.ranks > 1) add("links between devices: twice as fast").machine.collective_gbps *= 2;
  return all;
}

}  // namespace penstock::tools
