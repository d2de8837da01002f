// The snapshots of a store, as the verbs of `penstock checkpoint` list them.
#pragma once

#include <string>
#include <vector>

#include "tools/penstock/verb.h"

namespace penstock::tools {

// One object each, ascending: {step, bytes}, and eval_loss of those that were kept after an evaluation.
Json snapshots_json(const std::vector<std::string>& folders);

}  // namespace penstock::tools
