// The rates for predicting a run, measured in a few seconds on the drives and processors it will use.
#pragma once

#include <string>
#include <vector>

#include "tiering/plan/machine_profile.h"
#include "tiering/state_layout.h"
#include "tools/nvme/rig.h"

namespace penstock::tools {

struct MeasureOptions {
  double seconds = 0;         // on each point of the mix curve
  uint64_t memory_bytes = 0;  // about so many are taken at most
  // As the run will have them.
  uint32_t threads = 0;  // that update; 0: one for each processor
  aio::IoEngineChoice engine = aio::IoEngineChoice::automatic;
};

// On scratch files in `folders`.
Result<MachineProfile> measure_machine(const std::vector<std::string>& folders, const StateForm& form,
                                       const MeasureOptions& options, const Tick& tick);

}  // namespace penstock::tools
