// FioComparison runs one job with our engine and with fio in turns on the same file, so that a drive whose speed drifts
// drifts for both.
#pragma once

#include <vector>

#include "tools/nvme/fio.h"
#include "tools/nvme/rig.h"

namespace penstock::tools {

struct Pair {
  double ours_gbps = 0, fio_gbps = 0;
  double ours_cpu_s_per_gb = 0, fio_cpu_s_per_gb = 0;
};

struct FioComparison {
  Job job;
  FioWay way;
  std::vector<Pair> pairs;

  // REQUIRES, of these and the medians: there are pairs.
  double ratio_median() const;
  double ratio_min() const;
  double ratio_max() const;
  double ours_cpu_s_per_gb() const;  // medians
  double fio_cpu_s_per_gb() const;
};

// `pairs` turns of into.job; who begins changes from turn to turn. Refused or interrupted, `into` keeps the pairs that
// were complete.
Status compare_with_fio(Rig& rig, size_t pairs, const Tick& tick, FioComparison& into);

}  // namespace penstock::tools
