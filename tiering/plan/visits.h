// Visits: the passes of a plan that follow one another through one use, for which the weights are brought once. Where
// ranks gather them, they gather once for a visit.
#pragma once

#include <cstdint>
#include <vector>

#include "tiering/plan/plan.h"

namespace penstock {

// By Plan::computes: the number of its visit. A backward pass that follows the forward pass of its use is of the same
// visit; a forward pass that follows a backward pass begins another.
std::vector<uint32_t> visits_of(const Plan& plan);

// By visit: whether its weights come without the computing of the visit before, and without the gradients that the
// visit before that one completes; and its passes without the gradients that the visit before it completes. Such
// weights are gathered while the visit before is computed, and its gradients added up while this one is.
std::vector<bool> visits_ahead(const Plan& plan);

}  // namespace penstock
