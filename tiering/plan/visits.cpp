#include "tiering/plan/visits.h"

#include <algorithm>
#include <map>

namespace penstock {
namespace {

// What a move waits for within its step, by the number of a pass: the last that must have been computed, and the last
// whose gradients must have been handed over. -1: none.
struct Behind {
  int64_t computed = -1;
  int64_t handed_over = -1;

  void take(const Behind& other) {
    computed = std::max(computed, other.computed);
    handed_over = std::max(handed_over, other.handed_over);
  }
};

std::vector<Behind> behind_moves(const Plan& plan) {
  std::map<MoveId, int64_t> passes;
  for (size_t i = 0; i < plan.computes.size(); ++i) passes[plan.computes[i].move] = static_cast<int64_t>(i);
  std::vector<Behind> behind(plan.moves.size());
  for (MoveId id = 0; id < plan.moves.size(); ++id) {
    for (MoveId before : plan.moves[id].after) behind[id].take(behind[before]);
    if (const auto pass = passes.find(id); pass != passes.end()) behind[id].computed = pass->second;
    if (plan.moves[id].kind == MoveKind::gradient) behind[id].handed_over = behind[id].computed;
  }
  return behind;
}

}  // namespace

std::vector<uint32_t> visits_of(const Plan& plan) {
  std::vector<uint32_t> visits;
  const Compute* before = nullptr;
  for (const Compute& compute : plan.computes) {
    const bool turns =
        before != nullptr && before->direction == Direction::backward && compute.direction == Direction::forward;
    const bool goes_on = before != nullptr && before->use == compute.use && !turns;
    visits.push_back(before == nullptr ? 0 : visits.back() + (goes_on ? 0 : 1));
    before = &compute;
  }
  return visits;
}

std::vector<bool> visits_ahead(const Plan& plan) {
  const std::vector<uint32_t> visits = visits_of(plan);
  const std::vector<Behind> behind = behind_moves(plan);
  std::map<uint32_t, MoveId> current;  // by unit
  for (MoveId id = 0; id < plan.moves.size(); ++id) {
    if (plan.moves[id].kind == MoveKind::weights_current) current[plan.moves[id].unit] = id;
  }
  std::vector<int64_t> first_passes;  // by visit
  for (size_t i = 0; i < visits.size(); ++i) {
    if (visits[i] == first_passes.size()) first_passes.push_back(static_cast<int64_t>(i));
  }
  auto first_of = [&](uint32_t visit, uint32_t back) { return visit < back ? 0 : first_passes[visit - back]; };
  std::vector<bool> ahead(first_passes.size(), true);
  for (size_t i = 0; i < visits.size(); ++i) {
    const uint32_t visit = visits[i];
    const int64_t before = first_of(visit, 1);
    const Compute& compute = plan.computes[i];
    bool comes = visit > 0 && behind[compute.move].handed_over < before;
    for (const Compute::Weights& weights : compute.weights) {
      const MoveId id = weights.brought_by != kNoMove ? weights.brought_by : current.at(weights.unit);
      comes = comes && behind[id].computed < before && behind[id].handed_over < first_of(visit, 2);
    }
    if (!comes) ahead[visit] = false;
  }
  return ahead;
}

}  // namespace penstock
