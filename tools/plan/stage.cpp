#include "tools/plan/stage.h"

#include <cmath>
#include <tuple>

namespace penstock::tools {

const char* name_of(Stage stage) {
  switch (stage) {
    case Stage::replicated:
      return "stage 0";
    case Stage::states:
      return "stages 1 and 2";
    case Stage::sharded:
      return "stage 3";
    case Stage::hybrid:
      return "hybrid";
  }
  return "?";
}

std::vector<Stage> stages_of(const RankCount& ranks, const RankCodes& codes) {
  std::vector<Stage> stages = {Stage::sharded};
  if (ranks.all() == 1) return stages;
  if (ranks.nodes > 1 && ranks.of_node > 1) stages.push_back(Stage::hybrid);
  stages.push_back(Stage::states);
  if (!codes.weights && !codes.frozen_weights) stages.push_back(Stage::replicated);
  return stages;
}

uint32_t sharing_ranks(Stage stage, const RankCount& ranks) {
  if (stage == Stage::replicated) return 1;
  return stage == Stage::hybrid ? ranks.of_node : ranks.all();
}

void share_among(Workload& workload, Stage stage, const RankCount& ranks) {
  workload.ranks = sharing_ranks(stage, ranks);
  workload.groups = ranks.all() / workload.ranks;
  workload.node_ranks = ranks.of_node;
  workload.keeps_weights = stage == Stage::states;
}

bool goes_before(const StageMerit& a, const StageMerit& b) {
  constexpr double kAsFast = 1e-3;  // times that differ by less, in parts, are equal
  if (!a.fits || !b.fits) return a.fits && !b.fits;
  if (std::abs(a.step_s - b.step_s) > kAsFast * b.step_s) return a.step_s < b.step_s;
  const auto cost = [](const StageMerit& one) {
    return std::tuple(one.written_bytes, one.read_bytes, one.memory_bytes);
  };
  return cost(a) < cost(b);
}

}  // namespace penstock::tools
