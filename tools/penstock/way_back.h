// What to do about a corrupt store of which a step is kept.
#pragma once

#include <string>
#include <vector>

#include "runtime/engine/kept_steps.h"
#include "tiering/status.h"

namespace penstock::tools {

// The same refusal, but where the store is corrupt and one of its steps is kept, going back to that is what it advises.
Status with_way_back(const Status& status, const std::vector<std::string>& folders, engine::RankOfRun of = {});

}  // namespace penstock::tools
