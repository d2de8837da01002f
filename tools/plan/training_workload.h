// Turns a model's shape and a step's tokens into the planner's workload: one rank's units and the compute time of each.
#pragma once

#include "tiering/unit.h"
#include "tools/plan/model_shape.h"

namespace penstock::tools {

struct StepShape {
  uint64_t tokens = 0;    // of one step, over all ranks
  uint64_t sequence = 0;  // tokens
  uint32_t micro_batches = 1;
  uint32_t ranks = 1;
  uint32_t groups = 1;                        // of ranks, each of which has all of the model
  double device_flops = 0;                    // achieved, of one rank; 0: unknown, so compute takes no time
  std::optional<AdapterShape> adapters = {};  // none: all weights are trained

  double micro_batch_tokens() const { return static_cast<double>(tokens) / micro_batches / ranks; }
};

// Micro-batches of whole sequences, of about 8192 tokens or one sequence, whichever is more.
uint32_t usual_micro_batches(uint64_t tokens, uint64_t sequence, uint32_t ranks);

// Embedding, blocks, head, in this order; behind each block what trains beside it, as the trainer has it.
std::vector<Unit> training_units(const ModelShape& shape, const StepShape& step);
// One use of embedding, of each block and of the head; a tied head is computed with the embedding's weights too.
std::vector<Use> training_uses(const ModelShape& shape, const StepShape& step);

}  // namespace penstock::tools
