// A dry step: one micro-batch through every use, forward and backward, with weights of zeros and no engine. It measures
// what a plan of real steps must know.
#pragma once

#include <vector>

#include "runtime/trainer/batch.h"
#include "runtime/trainer/torch/train_step.h"

namespace penstock::trainer {

struct DryStep {
  // Of one micro-batch, as in Use.
  struct OfUse {
    double forward_s = 0;
    double backward_s = 0;
    uint64_t activation_bytes = 0;
    uint64_t boundary_bytes = 0;
  };
  std::vector<OfUse> uses;
  double product_flops = 0;  // in a second, of large products by themselves
  // The most that tensors take while a use is computed, beside its activations, where LibTorch holds them, and beside
  // the input and its gradient.
  uint64_t tensor_bytes = 0;
  // The most that the process takes beside tensors in host memory.
  uint64_t process_bytes = 0;
};

// With the first of the batches; all of them are checked. `keeping`: who will hold activations. Uses that compute alike
// are measured once.
Result<DryStep> dry_step(const Model& model, Accelerator& accelerator, const ComputeChoices& choices,
                         std::span<const MicroBatch> batches, Keeping keeping);

}  // namespace penstock::trainer
