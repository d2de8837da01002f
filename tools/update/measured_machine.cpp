#include "tools/update/measured_machine.h"

#include <algorithm>

#include "tools/nvme/update_rate.h"

namespace penstock::tools {

Result<MachineProfile> measure_machine(const std::vector<std::string>& folders, const StateForm& form,
                                       const MeasureOptions& options, const Tick& tick) {
  MachineProfile machine;
  machine.name = "measured";
  constexpr double kShares[] = {0, 0.25, 0.5, 0.75, 1};
  const double points = static_cast<double>((std::size(kShares) + 1) * folders.size());
  const uint64_t each = std::min(options.memory_bytes / folders.size(), Rig::kMostMemoryBytes);
  PENSTOCK_TRY_ASSIGN(
      rig, Rig::make({.paths = folders, .wanted_bytes = kGiB, .memory_bytes = each, .engine = options.engine},
                     [&](double share) { return tick(share * 0.2); }));
  double done = 0;
  for (size_t folder = 0; folder < folders.size(); ++folder) {
    std::vector<std::pair<double, double>> curve;
    for (double read_share : kShares) {
      PENSTOCK_TRY_ASSIGN(result,
                          rig->run_on(folder, {.read_share = read_share, .depth = 8, .seconds = options.seconds},
                                      [&](double share) { return tick(0.2 + 0.8 * (done + share) / points); }));
      curve.push_back({read_share, result.gbps()});
      done += 1;
    }
    DriveRates drive;
    drive.path = folders[folder];
    drive.burst = MixCurve(curve);
    const Job mixed{.read_share = 0.5, .depth = 8, .seconds = options.seconds / 2};
    PENSTOCK_TRY_ASSIGN(by_memory, rig->rate_by_memory(folder, mixed, [&](double share) {
      return tick(0.2 + 0.8 * (done + share) / points);
    }));
    drive.by_memory = by_memory;
    done += 1;
    PENSTOCK_TRY_ASSIGN(flush_s, rig->flush_seconds(folder, no_tick));
    drive.flush_s = flush_s;
    machine.drives.push_back(drive);
  }
  rig.reset();  // before the next measurement takes memory
  PENSTOCK_TRY_ASSIGN(host_gbps, measure_update_gbps(form, options.threads, options.memory_bytes));
  machine.host_gbps = host_gbps;
  return machine;
}

}  // namespace penstock::tools
