// Stage says what each rank of a run holds of its model, by ZeRO's numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "tiering/unit.h"

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

// Those that differ and leave the same bits: what stage 0 does not gather does not pass through codes. The one that
// needs the least memory first.
std::vector<Stage> stages_of(const RankCount& ranks, const RankCodes& codes = {});

// How many ranks have all of the model together.
uint32_t sharing_ranks(Stage stage, const RankCount& ranks);
// Says so in the workload, whose units are a rank's shards.
void share_among(Workload& workload, Stage stage, const RankCount& ranks);

// What decides between stages: a step's time, what it moves over the drives, and the memory that a rank takes.
struct StageMerit {
  bool fits = false;
  double step_s = 0;
  double written_bytes = 0, read_bytes = 0;
  uint64_t memory_bytes = 0;
};
// The faster one that fits; of equally fast ones, the one that writes less, then reads less, then takes less memory.
bool goes_before(const StageMerit& a, const StageMerit& b);

}  // namespace penstock::tools
