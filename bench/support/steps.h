// Steps of a synthetic run, as benchmarks time them.
#pragma once

#include "tools/update/update_run.h"

namespace penstock::bench {

// Takes them to their end: the last one's tail too. Where steps need not be durable at once, none is made so here.
Status take_steps(tools::UpdateRun& run, int count);

}  // namespace penstock::bench
