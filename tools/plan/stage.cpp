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
  }
  return "?";
}

std::vector<Stage> stages_of(uint32_t ranks) {
  if (ranks == 1) return {Stage::sharded};
  return {Stage::sharded, Stage::states, Stage::replicated};
}

uint32_t sharing_ranks(Stage stage, uint32_t ranks) { return stage == Stage::replicated ? 1 : ranks; }

}  // namespace penstock::tools
