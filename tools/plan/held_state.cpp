#include "tools/plan/held_state.h"

#include <algorithm>

namespace penstock::tools {
namespace {

bool is_weight(Role role) { return role == Role::weight || role == Role::weight_scale; }

std::vector<Plane> weight_planes(const Unit& unit, const StateForm& form) {
  return unit.code ? coded_planes(*unit.code) : std::vector<Plane>{{Role::weight, form.weight}};
}

}  // namespace

std::vector<HeldRole> held_state(const Forecast& forecast) {
  return held_state(*forecast.plan, forecast.rank_request.workload, forecast.rank_request.workload.ranks);
}

std::vector<HeldRole> held_state(const Plan& plan, const Workload& workload, uint32_t ranks) {
  std::vector<HeldRole> held;
  auto add = [&](const Plane& plane, Tier tier, uint64_t elements) {
    auto found = std::ranges::find(held, plane.role, &HeldRole::role);
    if (found == held.end()) found = held.insert(held.end(), HeldRole{plane.role, {}});
    found->bytes[static_cast<size_t>(tier)] += static_cast<double>(plane.bytes(elements)) * ranks;
  };
  for (TileId tile = 0; tile < plan.tiles.size(); ++tile) {
    const Unit& unit = workload.units[plan.tiles[tile].unit];
    const uint64_t elements = plan.tiles[tile].elements;
    for (const Plane& plane : weight_planes(unit, workload.form)) add(plane, plan.placements[tile].weight, elements);
    if (!unit.trainable) continue;
    for (const Plane& plane : resting_planes(workload.form)) add(plane, plan.placements[tile].state, elements);
  }
  std::ranges::sort(held, {}, &HeldRole::role);
  return held;
}

std::vector<HeldByStage> held_by_stage(const Forecast& forecast) {
  if (forecast.ranks < 2) return {};
  double weights = 0, states = 0;
  for (const HeldRole& held : held_state(forecast)) {
    for (double bytes : held.bytes) (is_weight(held.role) ? weights : states) += bytes;
  }
  std::vector<HeldByStage> all;
  std::vector<Stage> stages = stages_of(forecast.rank_count());
  std::ranges::sort(stages);
  for (Stage stage : stages) {
    const double sharing = sharing_ranks(stage, forecast.rank_count());
    const auto found = std::ranges::find(forecast.stages, stage, &StageForecast::stage);
    const double rank_bytes = (stage == Stage::states ? weights : weights / sharing) + states / sharing;
    all.push_back({stage, stage == forecast.stage, rank_bytes, {}});
    if (found != forecast.stages.end()) all.back().predicted = *found;
  }
  return all;
}

}  // namespace penstock::tools
