// What a model's state weighs between steps: role by role and tier by tier, and rank by rank under each ZeRO stage.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tools/plan/forecast.h"

namespace penstock::tools {

// In bytes of the whole model, without what pads tiles: what the newest step needs, once. Drives hold slots for older
// steps besides, which the memory table counts.
struct HeldRole {
  Role role;
  std::array<double, 3> bytes;  // on the device, in host memory, on drives only

  double bytes_of(Tier tier) const { return bytes[static_cast<size_t>(tier)]; }
};

struct HeldByStage {
  Stage stage;
  bool is_planned;
  double rank_bytes;                       // of each of the forecast's ranks, while a step runs
  std::optional<StageForecast> predicted;  // none: it was not planned
};

// In the order in which a tile holds them. REQUIRES: forecast.fits.
std::vector<HeldRole> held_state(const Forecast& forecast);
// The same of a plan for that workload, of `ranks` that hold as much as this one and share the model.
std::vector<HeldRole> held_state(const Plan& plan, const Workload& workload, uint32_t ranks);

// Empty for one rank, where all stages are the same. REQUIRES: forecast.fits.
std::vector<HeldByStage> held_by_stage(const Forecast& forecast);

}  // namespace penstock::tools
