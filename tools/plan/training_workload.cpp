#include "tools/plan/training_workload.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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
  auto add = [&](std::string name, uint64_t parameters) -> Unit& {
    units.push_back(
        {.name = std::move(name), .elements = ceil_div(parameters, step.ranks / step.groups), .parameters = {}});
    return units.back();
  };
  const bool is_frozen = step.adapters.has_value();
  const std::optional<BlockCode> code = is_frozen ? step.adapters->base_code : std::nullopt;
  const uint64_t vectors = code ? shape.block_vector_parameters() : 0;
  add("embedding", shape.embedding_parameters()).trainable = !is_frozen;
  for (uint64_t layer = 0; layer < shape.layers; ++layer) {
    Unit& block = add(text("block", layer), shape.block_parameters() - vectors);
    block.trainable = !is_frozen;
    block.code = code;
    if (vectors > 0) add(text("block", layer, " vectors"), vectors).trainable = false;
    if (is_frozen) add(text("block", layer, " adapters"), shape.block_adapter_parameters(step.adapters->rank));
  }
  add("head", shape.head_parameters()).trainable = !is_frozen;
  return units;
}

std::vector<Use> training_uses(const ModelShape& shape, const StepShape& step) {
  const bool is_frozen = step.adapters.has_value();
  uint32_t next_unit = 0;
  std::vector<Use> uses;
  auto add = [&](std::string name, uint32_t count, const Cost& cost) {
    std::vector<uint32_t> units(count);
    std::iota(units.begin(), units.end(), next_unit);
    next_unit += count;
    uses.push_back(use_of(std::move(name), std::move(units), cost, step));
  };
  // Token numbers are all that backward of the embedding needs.
  add("embedding", 1, {.activation_bytes = 4, .boundary_bytes = 4});
  // Backward computes gradients of what a product is given and of its weights, each as much work as the product; of
  // frozen weights it needs none.
  const double forward = shape.block_forward_flops(step.sequence);
  const double adapters = is_frozen ? shape.block_adapter_forward_flops(step.adapters->rank) : 0;
  const double backward = (is_frozen ? 1 : 2) * forward + 2 * adapters;
  const Cost block{forward + adapters, backward, shape.block_activation_bytes(), shape.boundary_bytes()};
  const uint32_t of_block = !is_frozen ? 1 : step.adapters->base_code && shape.block_vector_parameters() > 0 ? 3 : 2;
  for (uint64_t layer = 0; layer < shape.layers; ++layer) {
    add(text("block", layer), of_block, block);
    uses.back().gradients_stay = true;
  }
  // Logits are made piece by piece and made again in backward, or they would outweigh all else.
  const double head = shape.head_forward_flops();
  add("head", 1, {head, (is_frozen ? 2 : 3) * head, shape.boundary_bytes(), shape.boundary_bytes()});
  if (shape.tied) uses.back().units.push_back(0);
  return uses;
}

}  // namespace penstock::tools
