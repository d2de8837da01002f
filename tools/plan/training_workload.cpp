#include "tools/plan/training_workload.h"

#include <algorithm>
#include <cmath>

namespace penstock::tools {
namespace {

constexpr uint64_t kMicroBatchTokens = 8192;

struct Cost {
  double forward_flops = 0;  // of one token
  double backward_flops = 0;
  uint64_t activation_bytes = 0;
  uint64_t boundary_bytes = 0;
};

Unit unit_of(std::string name, uint64_t parameters, const Cost& cost, const StepShape& step) {
  Unit unit;
  unit.name = std::move(name);
  unit.elements = ceil_div(parameters, step.ranks);
  const double tokens = step.micro_batch_tokens();
  if (step.device_flops > 0) {
    unit.forward_s = cost.forward_flops * tokens / step.device_flops;
    unit.backward_s = cost.backward_flops * tokens / step.device_flops;
  }
  unit.activation_bytes = static_cast<uint64_t>(std::ceil(static_cast<double>(cost.activation_bytes) * tokens));
  unit.boundary_bytes = static_cast<uint64_t>(std::ceil(static_cast<double>(cost.boundary_bytes) * tokens));
  return unit;
}

}  // namespace

uint32_t usual_micro_batches(uint64_t tokens, uint64_t sequence, uint32_t ranks) {
  const uint64_t sequences = std::max<uint64_t>(1, tokens / ranks / sequence);
  const uint64_t together = std::clamp<uint64_t>(kMicroBatchTokens / sequence, 1, sequences);
  return static_cast<uint32_t>(ceil_div(sequences, together));
}

std::vector<Unit> training_units(const ModelShape& shape, const StepShape& step) {
  std::vector<Unit> units;
  // Token numbers are all that backward of the embedding needs.
  units.push_back(
      unit_of("embedding", shape.embedding_parameters(), {.activation_bytes = 4, .boundary_bytes = 4}, step));
  const double forward = shape.block_forward_flops(step.sequence);
  const Cost block{forward, 2 * forward, shape.block_activation_bytes(), shape.boundary_bytes()};
  for (uint64_t layer = 0; layer < shape.layers; ++layer) {
    units.push_back(unit_of(text("block", layer), shape.block_parameters(), block, step));
  }
  // Logits are made piece by piece and made again in backward, or they would outweigh all else.
  const double head = shape.head_forward_flops();
  units.push_back(
      unit_of("head", shape.head_parameters(), {head, 3 * head, shape.boundary_bytes(), shape.boundary_bytes()}, step));
  if (shape.tied) {
    units.front().uses = 2;
    units.back().also_uses = 0;
  }
  return units;
}

}  // namespace penstock::tools
