// What ranks move among one another, as moves of one rank's plan: for forecasts, where the plan that runs is of the
// rank's shards alone.
#pragma once

#include <cstdint>
#include <vector>

#include "tiering/plan/plan.h"

namespace penstock {

// What a rank takes from the others for one visit (visits_of): weights, and its part of the gradients that are complete
// with the visit.
struct VisitTraffic {
  uint64_t gathered_bytes = 0;
  uint64_t reduced_bytes = 0;
};

// The plan with a gather before each visit and a reduction behind it, where there is anything to move. A gather waits
// for the rank's own weights, and for the visit before: for its begin where the visit is `ahead`, else for its end and
// for its reduction. Updates wait for the reduction of their gradients, and passes for that of two visits before.
// REQUIRES: one of each by visit; the plan has no such moves.
Plan with_collectives(const Plan& plan, const std::vector<VisitTraffic>& traffic, const std::vector<bool>& ahead);

// What moves of that kind, gather or reduce, take from other ranks in a step.
uint64_t collective_bytes(const Plan& plan, MoveKind kind);

}  // namespace penstock
