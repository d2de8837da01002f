// What drives and update workers give together: windows are read, updated in place and written, over and over, as a
// loop does it that has neither steps nor plan nor trainer. What the drives' bytes and the updates take from one
// another on shared processors and memory, they take here too.
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
