#include "tools/plan/exit_commit.h"

#include <algorithm>

namespace penstock::tools {
namespace {

// Whole tiles: a slot is written at once.
uint64_t tile_bytes_resting_on(const Plan& plan, Tier tier) {
  uint64_t sum = 0;
  for (TileId tile = 0; tile < plan.tiles.size(); ++tile) {
    const Placement& placement = plan.placements[tile];
    if (plan.of_tile[tile].write == kNoMove || placement.state != tier) continue;
    sum += plan.moves[plan.of_tile[tile].write].bytes;
  }
  return sum;
}

// The decision thread alone gathers the tiles, while the drives write those before. It reads each byte where that
// rests, writes it to a window, reads it there for its checksum, and the drive reads it again: four times its traffic,
// of which one core carries about 10 GB/s, and never more than all of them do (measured: 2.2 to 2.8 GB/s of tiles).
constexpr double kTrafficOfAByte = 4, kThreadGbps = 10;

double gather_s(double bytes, const MachineProfile& machine) {
  if (machine.host_gbps <= 0) return 0;
  return kTrafficOfAByte * bytes / (std::min(kThreadGbps, machine.host_gbps) * 1e9);
}

double write_s(double bytes, const Plan& plan, const MachineProfile& machine) {
  const uint64_t windows = plan.pool_pieces[static_cast<size_t>(Pool::window)] - plan.ahead_windows;
  const double share = machine.share_by_memory(windows * plan.tiles.slot_bytes_max());
  return bytes / (machine.striped().gbps(0) * share * 1e9);
}

double download_s(double bytes, const MachineProfile& machine) {
  return machine.device_to_host_gbps > 0 ? bytes / (machine.device_to_host_gbps * 1e9) : 0;
}

}  // namespace

std::optional<ExitCommit> commit_at_exit(const Plan& plan, const MachineProfile& machine) {
  if (plan.durability.kind == Durability::Kind::step || !plan.has_state_in_memory()) return std::nullopt;
  const uint64_t device_bytes = tile_bytes_resting_on(plan, Tier::device);
  const uint64_t host_bytes = tile_bytes_resting_on(plan, Tier::host);
  ExitCommit commit{.written_bytes = device_bytes + host_bytes};
  if (machine.striped().empty()) return commit;
  // As a commit in the simulator: what was written is flushed, then the root.
  const double thread_s =
      gather_s(static_cast<double>(host_bytes), machine) + download_s(static_cast<double>(device_bytes), machine);
  const double drives_s = write_s(static_cast<double>(commit.written_bytes), plan, machine);
  commit.seconds = std::max(thread_s, drives_s) + 2 * machine.flush_s();
  return commit;
}

}  // namespace penstock::tools
