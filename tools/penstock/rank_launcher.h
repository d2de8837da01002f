// Starts a run's ranks as processes of this node, and watches them: `--ranks N`.
//
// Every rank is told its place by the variables that torchrun sets. Rank 0 has the launcher's output; what the others
// say on standard error is kept, for the case that rank 0 cannot tell what has happened. When a rank dies, hangs or
// fails, the others end by themselves; those that have not soon afterwards are killed. No rank outlives the launcher.
#pragma once

#include <string>
#include <vector>

#include "tiering/status.h"

namespace penstock::tools {

// Waits until all have ended. The exit code, if rank 0 has said all there is to say; else what has happened.
Result<int> run_ranks(uint32_t ranks, const std::vector<std::string>& command);

}  // namespace penstock::tools
