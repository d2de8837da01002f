#include "tools/plan/stage.h"

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

std::vector<Stage> stages_of(const RankCount& ranks) {
  if (ranks.all() == 1) return {Stage::sharded};
  if (ranks.nodes == 1 || ranks.of_node == 1) return {Stage::sharded, Stage::states, Stage::replicated};
  return {Stage::sharded, Stage::hybrid, Stage::states, Stage::replicated};
}

uint32_t sharing_ranks(Stage stage, const RankCount& ranks) {
  if (stage == Stage::replicated) return 1;
  return stage == Stage::hybrid ? ranks.of_node : ranks.all();
}

}  // namespace penstock::tools
