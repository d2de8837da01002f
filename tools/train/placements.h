// Every way in which a run's state, weights, gradients and activations can lie: what `penstock verify --grid` goes
// through. None of them changes a bit.
#pragma once

#include <string>
#include <vector>

#include "tools/train/settings_of_run.h"

namespace penstock::tools {

struct GridCase {
  std::string name;
  PlanChoices choices;
  bool on_device = false;  // the run's GPU, or the host device; else in place
};

// Each placement with each choice of activations, in place and on the host device, and in groups of one, two and all of
// the micro-batches. Of a run on a GPU, all are there: elsewhere other kernels compute.
std::vector<GridCase> all_placements(uint32_t micro_batches,
                                     trainer::ComputeDevice::Kind device = trainer::ComputeDevice::Kind::cpu);

// The same run, placed so.
TrainingSettings placed(const TrainingSettings& settings, const GridCase& one);

}  // namespace penstock::tools
