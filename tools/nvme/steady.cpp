#include "tools/nvme/steady.h"

#include <algorithm>

#include "tools/nvme/statistics.h"

namespace penstock::tools {
namespace {

constexpr size_t kRecent = 5;       // shares that must agree for a plateau
constexpr double kFallen = 0.8;     // of the burst rate: below, the fast cache has ended
constexpr double kAgreement = 0.1;  // from the median, either way
constexpr uint64_t kShares = 100;   // of the budget, each one point of the search
constexpr double kMixSeconds = 3;
constexpr double kMixShares[] = {0.25, 0.46, 0.54, 0.75, 1};

}  // namespace

double PlateauFinder::recent_gbps() const {
  const size_t count = std::min(kRecent, rates_.size());
  return median({rates_.end() - static_cast<ptrdiff_t>(count), rates_.end()});
}

bool PlateauFinder::add(double gbps) {
  rates_.push_back(gbps);
  if (rates_.size() <= kRecent) burst_gbps_ = recent_gbps();
  if (rates_.size() < 2 * kRecent) return false;
  const double recent = recent_gbps();
  if (recent >= kFallen * burst_gbps_) {
    fell_after_.reset();
    return false;
  }
  if (!fell_after_) fell_after_ = rates_.size() - kRecent;
  return std::all_of(rates_.end() - kRecent, rates_.end(), [&](double rate) {
    return rate >= recent * (1 - kAgreement) && rate <= recent * (1 + kAgreement);
  });
}

Result<Steady> measure_steady(Rig& rig, size_t folder, const SteadyOptions& options, const Tick& tick) {
  Steady steady;
  PlateauFinder finder;
  Job write{.read_share = 0, .block_bytes = options.block_bytes, .depth = options.depth, .seconds = 0};
  write.bytes = std::max(options.write_budget_bytes / kShares, options.block_bytes);
  double at_s = 0;
  while (steady.written_bytes + write.bytes <= options.write_budget_bytes) {
    const double done = static_cast<double>(steady.written_bytes) / static_cast<double>(options.write_budget_bytes);
    PENSTOCK_TRY_ASSIGN(result, rig.run_on(folder, write, [&](double) { return tick(done); }));
    steady.written_bytes += result.written_bytes;
    steady.rate.push_back({at_s += result.seconds, result.gbps()});
    if (finder.add(result.gbps())) break;
  }
  steady.burst_gbps = finder.burst_gbps();
  steady.sustained_gbps = finder.recent_gbps();
  if (finder.fell_after()) steady.fell_after_bytes = *finder.fell_after() * write.bytes;

  steady.mix_curve.push_back({0, steady.sustained_gbps});
  for (double share : kMixShares) {
    const Job job{
        .read_share = share, .block_bytes = options.block_bytes, .depth = options.depth, .seconds = kMixSeconds};
    PENSTOCK_TRY_ASSIGN(result, rig.run_on(folder, job, [&](double) { return tick(1); }));
    steady.mix_curve.push_back({share, result.gbps()});
  }
  return steady;
}

}  // namespace penstock::tools
