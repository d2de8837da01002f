// UseGraph: one use and micro-batch of the three ways to have in backward what forward computed.
//
// keep and offload record forward, and go back through the record under another lease. recompute goes forward without
// a record, and again with one under backward's lease. All three compute the same: not a bit differs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/trainer/torch/saved_tensors.h"
#include "runtime/trainer/torch/tensors.h"

namespace penstock::trainer {

// What a use computes. Under a record its arguments require gradients.
using UseFunction = std::function<at::Tensor(const WeightTensors& weights, const at::Tensor& hidden)>;

// One for each parameter of the use's units, in their order; undefined where it is frozen, or the computation did not
// depend on it.
struct UseGradients {
  at::Tensor hidden;
  std::vector<at::Tensor> parameters;
};

// Whether a block's input needs a gradient: not where nothing before it is trained.
enum class HiddenGradient : uint8_t { needed, not_needed };

class UseGraph {
 public:
  // Goes forward and records. `weights` may leave when it returns.
  static Result<std::unique_ptr<UseGraph>> record(const Model& model, const UseFunction& function,
                                                  std::span<const UnitWeights> weights, const at::Tensor& hidden,
                                                  HiddenGradient need, std::shared_ptr<SavedTensors> saved);
  // What forward computed, without its history. Once.
  at::Tensor take_result();
  // Once. The record is gone when it returns.
  Result<UseGradients> backward(std::span<const UnitWeights> weights, const at::Tensor& gradient);

 private:
  UseGraph() = default;

  std::shared_ptr<SavedTensors> saved_;
  at::Tensor hidden_, result_, computed_;
  std::vector<at::Tensor> parameters_;
};

// Forward without a record.
Result<at::Tensor> forward_only(const Model& model, const UseFunction& function, std::span<const UnitWeights> weights,
                                const at::Tensor& hidden);
// Forward with a record and backward at once.
Result<UseGradients> recompute(const Model& model, const UseFunction& function, std::span<const UnitWeights> weights,
                               const at::Tensor& hidden, HiddenGradient need, const at::Tensor& gradient);

}  // namespace penstock::trainer
