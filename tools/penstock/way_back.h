// What to do about a damaged store of which a step is kept.
#pragma once

#include <string>
#include <vector>

#include "tiering/status.h"

namespace penstock::tools {

// The same refusal, but where it is of damage to the store of a single rank, and one of its steps is kept, going back
// to that is what it advises. `paths` as given: commas may join them.
Status with_way_back(const Status& status, const std::vector<std::string>& paths);

}  // namespace penstock::tools
