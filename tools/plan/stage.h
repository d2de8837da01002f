// Stage says what each rank of a run holds of its model, by ZeRO's numbers.
#pragma once

#include <cstdint>
#include <vector>

namespace penstock::tools {

enum class Stage : uint8_t {
  replicated,  // 0: everything. Only gradients pass between ranks
  states,      // 1 and 2: its share of the state, and all weights, gathered once, until the step ends
  sharded,     // 3: its share of everything. Weights are gathered for each pass
  hybrid,      // the same within each node, and every node has everything
};

// How many ranks there are.
struct RankCount {
  uint32_t of_node = 1;
  uint32_t nodes = 1;

  uint32_t all() const { return of_node * nodes; }
};

// "stage 0", "stages 1 and 2".
const char* name_of(Stage stage);

// Those that differ. The one that needs the least memory first.
std::vector<Stage> stages_of(const RankCount& ranks);

// How many ranks have all of the model together.
uint32_t sharing_ranks(Stage stage, const RankCount& ranks);

}  // namespace penstock::tools
