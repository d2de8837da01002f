#include "tools/nvme/comparison.h"

#include <algorithm>

#include "tools/nvme/statistics.h"

namespace penstock::tools {
namespace {

template <typename Figure>
std::vector<double> each(const std::vector<Pair>& pairs, Figure figure) {
  std::vector<double> values;
  for (const Pair& pair : pairs) values.push_back(figure(pair));
  return values;
}

std::vector<double> ratios(const std::vector<Pair>& pairs) {
  return each(pairs, [](const Pair& pair) { return pair.ours_gbps / pair.fio_gbps; });
}

Status run_ours(const Job& job, Rig& rig, const Tick& tick, Pair& into) {
  PENSTOCK_TRY_ASSIGN(result, rig.run(job, tick));
  into.ours_gbps = result.gbps();
  into.ours_cpu_s_per_gb = result.cpu_s_per_gb();
  return {};
}

Status run_theirs(const Job& job, const Rig& rig, FioWay way, Pair& into) {
  PENSTOCK_TRY_ASSIGN(result, run_fio(job, rig.file_paths(), way));
  into.fio_gbps = result.gbps;
  into.fio_cpu_s_per_gb = result.cpu_s_per_gb;
  return {};
}

}  // namespace

double FioComparison::ratio_median() const { return median(ratios(pairs)); }
double FioComparison::ratio_min() const { return std::ranges::min(ratios(pairs)); }
double FioComparison::ratio_max() const { return std::ranges::max(ratios(pairs)); }
double FioComparison::ours_cpu_s_per_gb() const {
  return median(each(pairs, [](const Pair& pair) { return pair.ours_cpu_s_per_gb; }));
}
double FioComparison::fio_cpu_s_per_gb() const {
  return median(each(pairs, [](const Pair& pair) { return pair.fio_cpu_s_per_gb; }));
}

Status compare_with_fio(Rig& rig, size_t pairs, const Tick& tick, FioComparison& into) {
  for (size_t turn = 0; turn < pairs; ++turn) {
    Pair pair;
    auto ours_tick = [&](double share) {
      return tick((static_cast<double>(turn) + share / 2) / static_cast<double>(pairs));
    };
    PENSTOCK_TRY(ours_tick(0));
    if (turn % 2 == 0) PENSTOCK_TRY(run_ours(into.job, rig, ours_tick, pair));
    PENSTOCK_TRY(run_theirs(into.job, rig, into.way, pair));
    PENSTOCK_TRY(ours_tick(1));
    if (turn % 2 == 1) PENSTOCK_TRY(run_ours(into.job, rig, ours_tick, pair));
    into.pairs.push_back(pair);
  }
  return Status();
}

}  // namespace penstock::tools
