// The simulator lets virtual time pass over a plan, under the rules that the executor issues moves by (PlanRun).
//
// The drives are one resource: what is in flight is read and written at the rate that the mix curve gives for it, reads
// and writes taking turns. Where the CPU computes, updates share it with compute. Every other lane carries its moves
// one after another.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "tiering/plan/machine_profile.h"
#include "tiering/plan/plan.h"
#include "tiering/plan/plan_run.h"

namespace penstock {

struct SimulatedSpan {
  uint64_t step;
  MoveId move;
  double begin_s;
  double end_s;
};

struct SimulatedStep {
  double begin_s = 0;
  double end_s = 0;  // the last move, the commit included
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t found_bytes = 0;  // not read, because the step before had left them where they were to be read to
};

struct Simulation {
  std::vector<SimulatedStep> steps;
  std::array<double, kLanes> busy_s{};
  double drives_busy_s = 0;          // reading, writing or both
  std::vector<SimulatedSpan> spans;  // if asked for
  // Seconds per step once the pipeline is full: between the ends of the second and the last step but one.
  double step_s = 0;
  double total_s = 0;
  Lane bottleneck = Lane::none;  // the busiest lane
};

struct SimulationOptions {
  uint32_t steps = 4;
  // Seconds that the trainer needs to hand over a tile's gradient. None: what adding up and copying takes where it
  // computes in place, else 0.
  std::function<double(TileId tile)> gradient_s;
  // How each step's gradients turn out; by default all are confirmed.
  std::function<Verdict(uint64_t step)> verdict;
  // The share of a striking step's gradients after which the partial norm has passed the clip.
  double strike_known_at = 1;
  std::function<bool(uint64_t step)> speculate;
  bool record_spans = false;
};

// REQUIRES: validate(plan) is ok. A plan that stops making progress is our mistake and fails a CHECK.
Simulation simulate(const Plan& plan, const MachineProfile& machine, const SimulationOptions& options);

}  // namespace penstock
