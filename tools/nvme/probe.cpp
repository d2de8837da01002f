#include "tools/nvme/probe.h"

#include <algorithm>

namespace penstock::tools {
namespace {

struct Shape {
  uint64_t block_bytes;
  uint32_t depth;
};
// Small enough to be done in seconds, wide enough to show where a drive's best lies.
constexpr Shape kShapes[] = {{256 * kKiB, 4}, {256 * kKiB, 32}, {kMiB, 2},     {kMiB, 4},    {kMiB, 8},
                             {kMiB, 16},      {kMiB, 32},       {4 * kMiB, 2}, {4 * kMiB, 8}};
// 14 of 26 bytes of a training step are reads; the ends and the points between make the curve.
constexpr double kShares[] = {0, 0.25, 0.46, 0.54, 0.75, 1};
constexpr int kCurvePasses = 2;
// One share of time for each run: the grid in both directions, the curve's passes count twice, sizes of memory,
// latency.
constexpr double kRuns = 2 * std::size(kShapes) + 2 * kCurvePasses * std::size(kShares) + Rig::kMemorySteps + 1;

// Runs one after another, each with an equal part of the time, and reports progress over all of them.
class Runs {
 public:
  Runs(Rig& rig, double seconds_each, const Tick& tick)
      : rig_(rig), seconds_each_(seconds_each), total_(kRuns * static_cast<double>(rig.folders())), tick_(tick) {}

  Result<JobResult> run(size_t folder, Job job, double parts = 1) {
    job.seconds = seconds_each_ * parts;
    const double begun = begun_;
    begun_ += parts;
    return rig_.run_on(folder, job, [&, begun](double share) { return tick_((begun + share * parts) / total_); });
  }
  Result<MemoryCurve> run_by_memory(size_t folder, Job job) {
    job.seconds = seconds_each_;
    const double begun = begun_;
    begun_ += Rig::kMemorySteps;
    return rig_.rate_by_memory(
        folder, job, [&, begun](double share) { return tick_((begun + share * Rig::kMemorySteps) / total_); });
  }

 private:
  Rig& rig_;
  const double seconds_each_;
  const double total_;
  const Tick& tick_;
  double begun_ = 0;
};

Status measure_grid(Runs& runs, size_t folder, DriveProbe& probe) {
  for (const Shape& shape : kShapes) {
    Job job{.block_bytes = shape.block_bytes, .depth = shape.depth};
    PENSTOCK_TRY_ASSIGN(read, runs.run(folder, job));
    job.read_share = 0;
    PENSTOCK_TRY_ASSIGN(write, runs.run(folder, job));
    probe.grid.push_back({shape.block_bytes, shape.depth, read.gbps(), write.gbps()});
  }
  // A training step reads about as much as it writes, so the slower of the two counts as much as the faster.
  auto worth = [](const GridPoint& point) { return 1 / (1 / point.read_gbps + 1 / point.write_gbps); };
  probe.best = *std::max_element(probe.grid.begin(), probe.grid.end(),
                                 [&](const GridPoint& a, const GridPoint& b) { return worth(a) < worth(b); });
  return {};
}

// Passes over all shares rather than one long run each: a drive that drifts bends the curve less.
Status measure_curve(Runs& runs, size_t folder, DriveProbe& probe) {
  for (double share : kShares) probe.mix_curve.push_back({share, 0});
  for (int pass = 0; pass < kCurvePasses; ++pass) {
    for (auto& [share, gbps] : probe.mix_curve) {
      const Job job{.read_share = share, .block_bytes = probe.best.block_bytes, .depth = probe.best.depth};
      PENSTOCK_TRY_ASSIGN(result, runs.run(folder, job, 2));
      gbps += result.gbps() / kCurvePasses;
    }
  }
  return {};
}

Status measure_by_memory(Runs& runs, size_t folder, DriveProbe& probe) {
  const Job job{.read_share = 0.5, .block_bytes = probe.best.block_bytes, .depth = probe.best.depth};
  PENSTOCK_TRY_ASSIGN(by_memory, runs.run_by_memory(folder, job));
  probe.by_memory = by_memory;
  return {};
}

Status measure_latency(Runs& runs, size_t folder, DriveProbe& probe) {
  const Job job{.pattern = Pattern::random, .block_bytes = 4 * kKiB, .depth = 1};
  PENSTOCK_TRY_ASSIGN(result, runs.run(folder, job));
  probe.latency_p50_us = result.latency.percentile_us(0.5);
  probe.latency_p99_us = result.latency.percentile_us(0.99);
  return {};
}

}  // namespace

DriveRates DriveProbe::rates() const {
  DriveRates rates;
  rates.path = path;
  rates.device = drive.device;
  rates.burst = MixCurve(mix_curve);
  rates.by_memory = by_memory;
  rates.latency_s = latency_p50_us * 1e-6;
  rates.flush_s = flush_s;
  rates.capacity_bytes = drive.free_bytes;
  return rates;
}

Result<std::vector<DriveProbe>> probe_drives(Rig& rig, double seconds, const Tick& tick) {
  Runs runs(rig, seconds / static_cast<double>(rig.folders()) / kRuns, tick);
  std::vector<DriveProbe> probes;
  for (size_t folder = 0; folder < rig.folders(); ++folder) {
    DriveProbe probe;
    probe.path = rig.folder(folder).path();
    probe.drive = rig.folder(folder).drive();
    probe.alignment_bytes = rig.folder(folder).file().alignment_bytes();
    PENSTOCK_TRY(measure_latency(runs, folder, probe));
    PENSTOCK_TRY(measure_grid(runs, folder, probe));
    PENSTOCK_TRY(measure_curve(runs, folder, probe));
    PENSTOCK_TRY(measure_by_memory(runs, folder, probe));
    PENSTOCK_TRY_ASSIGN(flush_s, rig.flush_seconds(folder, [](double) { return check_interrupted(); }));
    probe.flush_s = flush_s;
    probe.engine = rig.engine_used();
    probes.push_back(std::move(probe));
  }
  return probes;
}

}  // namespace penstock::tools
