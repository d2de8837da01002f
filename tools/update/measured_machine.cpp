#include "tools/update/measured_machine.h"

#include <algorithm>

#include "tools/nvme/update_rate.h"
#include "tools/system/limits.h"

namespace penstock::tools {
namespace {

// A drive that pauses (throttled, or behind a network) is measured over as many pauses, or the one at the end of a job
// would tell more than all before it; but not longer than some times what was asked for.
constexpr double kPausesMeasured = 20;
constexpr double kTimesLongerMost = 5;

double seconds_against_pauses(const JobResult& result, double asked_s) {
  const double pause_s = 1e-6 * result.latency.percentile_us(0.99);
  return std::clamp(kPausesMeasured * pause_s, asked_s, kTimesLongerMost * asked_s);
}

}  // namespace

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
    double seconds = options.seconds;
    auto measure = [&](double read_share) {
      return rig->run_on(folder, {.read_share = read_share, .depth = 8, .seconds = seconds},
                         [&](double share) { return tick(0.2 + 0.8 * (done + share) / points); });
    };
    std::vector<std::pair<double, double>> curve;
    for (double read_share : kShares) {
      PENSTOCK_TRY_ASSIGN(result, measure(read_share));
      if (const double longer = seconds_against_pauses(result, options.seconds); longer > seconds) {
        seconds = longer;
        PENSTOCK_TRY_ASSIGN(again, measure(read_share));
        result = again;
      }
      curve.push_back({read_share, result.gbps()});
      done += 1;
    }
    DriveRates drive;
    drive.path = folders[folder];
    drive.burst = MixCurve(curve);
    const Job mixed{.read_share = 0.5, .depth = 8, .seconds = seconds / 2};
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
  machine.threads = options.threads > 0 ? options.threads : usable_processors();
  return machine;
}

}  // namespace penstock::tools
