// What rules about the loss did, for a run's log.
#pragma once

#include <span>

#include "runtime/trainer/loss_event.h"
#include "tools/penstock/verb.h"

namespace penstock::tools {

// One object for each.
Json events_json(std::span<const trainer::LossEvent> events);
// The line of a step that the run has ended before, in the place of the one that a later run on the store adds.
Json stopped_json(std::span<const trainer::LossEvent> events, const trainer::LossEvent& ended_by);

}  // namespace penstock::tools
