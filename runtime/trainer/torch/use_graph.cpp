#include "runtime/trainer/torch/use_graph.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "runtime/trainer/torch/refusals.h"

namespace penstock::trainer {
namespace {

// The parameters of the use's units that are trained; undefined for the others.
std::vector<at::Tensor> trained_of(const Model& model, std::span<const UnitWeights> lent, WeightTensors& weights) {
  std::vector<at::Tensor> parameters;
  for (const UnitWeights& unit : lent) {
    for (const ModelParameter& parameter : model.units.at(unit.unit).parameters) {
      parameters.emplace_back();
      if (!parameter.trainable) continue;
      weights.of(parameter).requires_grad_();
      parameters.back() = weights.of(parameter);
    }
  }
  return parameters;
}

at::Tensor leaf_of(const at::Tensor& hidden, HiddenGradient need) {
  at::Tensor leaf = hidden.detach();
  return need == HiddenGradient::needed ? leaf.requires_grad_() : leaf;
}

UseGradients gradients_of(const at::Tensor& result, const at::Tensor& hidden, const std::vector<at::Tensor>& parameters,
                          const at::Tensor& gradient) {
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& parameter : parameters)
    if (parameter.defined()) inputs.push_back(parameter);
  if (hidden.requires_grad()) inputs.push_back(hidden);
  UseGradients gradients;
  gradients.parameters.resize(parameters.size());
  if (inputs.empty()) return gradients;
  std::vector<at::Tensor> found = torch::autograd::grad({result}, inputs, {gradient}, /*retain_graph=*/false,
                                                        /*create_graph=*/false, /*allow_unused=*/true);
  size_t next = 0;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].defined()) gradients.parameters[i] = std::move(found[next++]);
  if (hidden.requires_grad()) gradients.hidden = std::move(found[next]);
  return gradients;
}

// The ends of the graph are needed for what they are connected to alone. A parameter would still point to lent memory,
// the others would hold theirs: each gets the memory of one element instead.
void let_go(at::Tensor& end) {
  if (end.defined()) end.set_data(at::zeros({1}, end.options()).expand(end.sizes()));
}

}  // namespace

Result<std::unique_ptr<UseGraph>> UseGraph::record(const Model& model, const UseFunction& function,
                                                   std::span<const UnitWeights> weights, const at::Tensor& hidden,
                                                   HiddenGradient need, std::shared_ptr<SavedTensors> saved) {
  std::unique_ptr<UseGraph> graph(new UseGraph);
  graph->saved_ = std::move(saved);
  SavedTensors& kept = *graph->saved_;
  return without_exceptions(&kept.status(), [&]() -> Result<std::unique_ptr<UseGraph>> {
    c10::AutoGradMode recorded(true);
    WeightTensors views = views_of(model, weights, hidden.device());
    graph->parameters_ = trained_of(model, weights, views);
    graph->hidden_ = leaf_of(hidden, need);
    kept.lend(weights);
    {
      SavedTensors::Recording recording(kept);
      graph->result_ = function(views, graph->hidden_);
    }
    graph->computed_ = graph->result_.detach();
    for (at::Tensor& parameter : graph->parameters_) let_go(parameter);
    let_go(graph->hidden_);
    let_go(graph->result_);
    kept.take_back();
    return std::move(graph);
  });
}

at::Tensor UseGraph::take_result() { return std::move(computed_); }

Result<UseGradients> UseGraph::backward(std::span<const UnitWeights> weights, const at::Tensor& gradient) {
  return without_exceptions(&saved_->status(), [&]() -> Result<UseGradients> {
    saved_->lend(weights);
    UseGradients gradients = gradients_of(result_, hidden_, parameters_, gradient);
    saved_->take_back();
    result_.reset();
    return gradients;
  });
}

Result<at::Tensor> forward_only(const Model& model, const UseFunction& function, std::span<const UnitWeights> weights,
                                const at::Tensor& hidden) {
  return without_exceptions(nullptr, [&]() -> Result<at::Tensor> {
    c10::AutoGradMode not_recorded(false);
    return function(views_of(model, weights, hidden.device()), hidden);
  });
}

Result<UseGradients> recompute(const Model& model, const UseFunction& function, std::span<const UnitWeights> weights,
                               const at::Tensor& hidden, HiddenGradient need, const at::Tensor& gradient) {
  return without_exceptions(nullptr, [&]() -> Result<UseGradients> {
    c10::AutoGradMode recorded(true);
    WeightTensors views = views_of(model, weights, hidden.device());
    const std::vector<at::Tensor> parameters = trained_of(model, weights, views);
    const at::Tensor leaf = leaf_of(hidden, need);
    return gradients_of(function(views, leaf), leaf, parameters, gradient);
  });
}

}  // namespace penstock::trainer
