// TrainStep computes the loss and the gradients of one step, over the engine's verbs, in the order that the plan gives.
//
// The loss is the mean over the supervised tokens of the whole step, however they are spread over micro-batches and
// ranks.
//
// The head's forward happens in its backward, where its logits serve both; the order may name its forward or leave it
// out. Backward of uses before which, and in which, nothing is trained computes nothing, and may be left out too.
//
// Used by one thread. After a refusal what was under way is forgotten, and the next step can begin.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/trainer/batch.h"
#include "runtime/trainer/engine_verbs.h"
#include "runtime/trainer/model.h"
#include "tiering/unit.h"

namespace penstock::trainer {

// Configuration: it is part of what a result depends on.
struct ComputeChoices {
  uint64_t seed = 0;
  int64_t head_tokens = 0;  // whose logits are in memory at once; 0: a whole micro-batch
  int64_t head_rows = 0;    // of the vocabulary, whose gradient is in memory at once; 0: all
};

// Of several micro-batches, the one with the highest mean loss, or the first whose loss is not finite.
struct WorstMicroBatch {
  static constexpr uint64_t kNone = ~uint64_t{0};

  uint64_t number = kNone;  // in the step
  double loss = 0;

  void look_at(const WorstMicroBatch& other);
};

struct StepLoss {
  double sum = 0;           // of -log(probability) over supervised tokens
  uint64_t supervised = 0;  // tokens
  WorstMicroBatch worst = {};

  double mean() const { return supervised == 0 ? 0 : sum / static_cast<double>(supervised); }
};
// Added up in this order.
StepLoss sum_of(std::span<const StepLoss> losses);

// What several ranks share of a step: each computes some of its micro-batches.
struct StepShare {
  uint64_t first_micro_batch = 0;           // of the step's, that this rank computes
  std::optional<uint64_t> supervised = {};  // tokens of all ranks; empty: this one is alone
};

class TrainStep {
 public:
  // `engine` outlives this. `activations` by use; those of the first and the last do not matter. What is offloaded is
  // put with the engine; what is kept, or computed again from, is there too or in LibTorch's memory, by `keeping`.
  // Which choice is taken changes no bit.
  TrainStep(const Model& model, EngineVerbs& engine, const ComputeChoices& choices,
            std::vector<ActivationChoice> activations, Keeping keeping = Keeping::in_memory);
  ~TrainStep();

  // Between steps: from now on as another plan has it.
  void set_activations(std::vector<ActivationChoice> activations);

  // Refuses tokens outside the vocabulary, sequences longer than the model's learned positions, and batches whose
  // numbers do not agree.
  Status check(std::span<const MicroBatch> batches) const;

  // Every pass of `order` once; each use's forward before its backward, forward of a micro-batch upwards, backward
  // downwards. The gradients are those of loss_scale x the step's mean loss; a frozen parameter has none.
  Result<StepLoss> run(uint64_t step, std::span<const MicroBatch> batches, std::span<const ComputePass> order,
                       double loss_scale = 1, const StepShare& share = {});
  // Forward alone, without dropout: the loss of each micro-batch. All pass through a use while it is held: weights come
  // once.
  Result<std::vector<StepLoss>> evaluate(std::span<const MicroBatch> batches);

 private:
  struct UnderWay;  // of the step

  void begin(UnderWay& way) const;
  // Waits for the losses, and so for all that is computed.
  Result<std::vector<StepLoss>> losses_of(const UnderWay& way) const;
  Status take(UnderWay& way, const ComputePass& pass);
  Status pass_forward(UnderWay& way, const ComputePass& pass, std::span<const UnitWeights> weights);
  Status pass_backward(UnderWay& way, const ComputePass& pass, std::span<const UnitWeights> weights);
  Status block_forward_of(UnderWay& way, const ComputePass& pass, std::span<const UnitWeights> weights);
  Status block_backward_of(UnderWay& way, const ComputePass& pass, std::span<const UnitWeights> weights);
  Result<StepLoss> pass_all(UnderWay& way, std::span<const ComputePass> order);

  const Model& model_;
  EngineVerbs& engine_;
  const ComputeChoices choices_;
  std::vector<ActivationChoice> activations_;
  const Keeping keeping_;
  uint32_t lowest_trained_ = 0;  // the first use that has something to train
};

// A usual order: groups of `group` micro-batches, each forward through all uses before the next group; within it, all
// of a group pass through a use before the next use.
std::vector<ComputePass> step_order(const Model& model, uint32_t micro_batches, uint32_t group);

}  // namespace penstock::trainer
