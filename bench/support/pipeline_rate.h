// The rate of drives and update workers together in the simplest loop: windows are read, updated in place and written,
// over and over, without steps, plan or trainer. I/O and updates compete for processors and memory here as they do in a
// step.
#pragma once

#include <string>
#include <vector>

#include "bench/support/store_rate.h"
#include "tiering/state_layout.h"

namespace penstock::bench {

// GB/s, reads and writes together, in the share that the updates make them. As measure_store_gbps() else.
Result<double> measure_pipeline_gbps(const std::vector<std::string>& folders, const StateForm& form,
                                     StoreTraffic& traffic);

}  // namespace penstock::bench
