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

Use use_of(std::string name, std::vector<uint32_t> units, const Cost& cost, const StepShape& step) {
  Use use{.name = std::move(name), .units = std::move(units)};
  const double tokens = step.micro_batch_tokens();
  if (step.device_flops > 0) {
    use.forward_s = cost.forward_flops * tokens / step.device_flops;
    use.backward_s = cost.backward_flops * tokens / step.device_flops;
  }
  use.activation_bytes = static_cast<uint64_t>(std::ceil(static_cast<double>(cost.activation_bytes) * tokens));
  use.boundary_bytes = static_cast<uint64_t>(std::ceil(static_cast<double>(cost.boundary_bytes) * tokens));
  return use;
}

}  // namespace

uint32_t usual_micro_batches(uint64_t tokens, uint64_t sequence, uint32_t ranks) {
  const uint64_t sequences = std::max<uint64_t>(1, tokens / ranks / sequence);
  const uint64_t together = std::clamp<uint64_t>(kMicroBatchTokens / sequence, 1, sequences);
  return static_cast<uint32_t>(ceil_div(sequences, together));
}

std::vector<Unit> training_units(const ModelShape& shape, const StepShape& step) {
  std::vector<Unit> units;
  auto add = [&](std::string name, uint64_t parameters) {
    units.push_back({.name = std::move(name), .elements = ceil_div(parameters, step.ranks), .parameters = {}});
  };
  add("embedding", shape.embedding_parameters());
  for (uint64_t layer = 0; layer < shape.layers; ++layer) add(text("block", layer), shape.block_parameters());
  add("head", shape.head_parameters());
  return units;
}

std::vector<Use> training_uses(const ModelShape& shape, const StepShape& step) {
  std::vector<Use> uses;
  auto add = [&](std::string name, const Cost& cost) {
    uses.push_back(use_of(std::move(name), {static_cast<uint32_t>(uses.size())}, cost, step));
  };
  // Token numbers are all that backward of the embedding needs.
  add("embedding", {.activation_bytes = 4, .boundary_bytes = 4});
  const double forward = shape.block_forward_flops(step.sequence);
  const Cost block{forward, 2 * forward, shape.block_activation_bytes(), shape.boundary_bytes()};
  for (uint64_t layer = 0; layer < shape.layers; ++layer) add(text("block", layer), block);
  // Logits are made piece by piece and made again in backward, or they would outweigh all else.
  const double head = shape.head_forward_flops();
  add("head", {head, 3 * head, shape.boundary_bytes(), shape.boundary_bytes()});
  if (shape.tied) uses.back().units.push_back(0);
  return uses;
}

}  // namespace penstock::tools
