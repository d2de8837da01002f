// The snapshots of a run's stores, as the verbs of `penstock checkpoint` list them.
#pragma once

#include "runtime/engine/ranks/kept_together.h"
#include "tools/penstock/verb.h"

namespace penstock::tools {

// One object each, ascending: {step, bytes}, and eval_loss of those that were kept after an evaluation.
Json snapshots_json(const engine::KeptTogether& kept);

}  // namespace penstock::tools
