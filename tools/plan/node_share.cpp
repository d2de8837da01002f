#include "tools/plan/node_share.h"

#include <algorithm>

namespace penstock::tools {

double copied_gbps(const MachineProfile& of_rank) { return of_rank.host_gbps / 2; }

MachineProfile share_of(MachineProfile node, uint32_t ranks) {
  const double part = 1.0 / ranks;
  for (DriveRates& drive : node.drives) {
    drive.burst = drive.burst.scaled(part);
    if (drive.sustained) drive.sustained = drive.sustained->scaled(part);
    drive.capacity_bytes /= ranks;
    drive.endurance_bytes *= part;
  }
  node.host_gbps *= part;
  node.network_gbps *= part;
  if (node.devices == 0) {
    node.device_flops *= part;
    if (ranks > 1 && node.collective_gbps <= 0) node.collective_gbps = copied_gbps(node);
  }
  node.devices = std::min(node.devices, 1u);
  node.host_bytes /= ranks;
  node.threads /= ranks;
  return node;
}

Budgets share_of(Budgets node, uint32_t ranks) {
  node.host_bytes /= ranks;
  node.nvme_bytes /= ranks;
  return node;
}

Budgets usual_budgets(const MachineProfile& node) {
  auto most_of = [](uint64_t bytes) { return bytes / 10 * 9; };
  uint64_t drives = 0;
  bool known = true;
  for (const DriveRates& drive : node.drives) {
    drives += drive.capacity_bytes;
    known &= drive.capacity_bytes > 0;
  }
  return {.device_bytes = node.devices > 0 ? most_of(node.device_bytes) : 0,
          .host_bytes = most_of(node.host_bytes),
          .nvme_bytes = known ? most_of(drives) : Budgets().nvme_bytes};
}

}  // namespace penstock::tools
