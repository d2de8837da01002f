// What Engine needs to take another plan between steps, and what it says of it. Pure but for the time that a search
// takes.
#pragma once

#include <string>

#include "tiering/plan/plan_search.h"

namespace penstock::engine {

// Of the arenas that a run has: a plan that comes later must fit.
struct ArenaRoom {
  uint64_t host_bytes = 0;
  uint64_t device_bytes = 0;  // 0: it computes in place
};

// The tiles are the store's: only a new store could have others.
PlanRequest with_tiles_of(PlanRequest request, uint64_t tile_elements, uint32_t slots);

// Refuses a plan that the executor does not carry out, before a step waits for it.
Status refuse_moves(const Plan& plan, bool has_device);

// Refuses a request for another model, state or durability than what a store and its run are for, with the first
// difference. Machine, budgets, choices, uses and micro-batches may differ.
Status same_model(const PlanRequest& here, const PlanRequest& there);

// The fastest plan whose arenas fit: where the budgets would allow larger ones, it is made for smaller budgets.
Result<ChosenPlan> choose_plan_within(PlanRequest request, const ArenaRoom& room);

// "activations of 3 of 24 uses kept, micro-batches in groups of 4, 1.20 GiB at rest in host memory, 0.512 s a step";
// without rates no time is said.
std::string summary_of(const Plan& plan, double step_s);

}  // namespace penstock::engine
