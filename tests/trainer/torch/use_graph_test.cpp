#include "runtime/trainer/torch/use_graph.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "runtime/trainer/torch/block.h"
#include "tests/trainer/torch/small_models.h"

namespace penstock::trainer {
namespace {

constexpr int64_t kBatch = 2, kLength = 24;
constexpr uint32_t kUse = 2;

struct Way {
  const char* name;
  bool recorded;
  Keeping keeping;
};
constexpr Way kWays[] = {{"recompute", false, Keeping::in_memory},
                         {"keep", true, Keeping::in_memory},
                         {"offload", true, Keeping::with_engine}};

// A block in the middle of a small model, computed with, in one dtype.
class BlockGraph : public ::testing::TestWithParam<std::tuple<SmallModel, Dtype>> {
 protected:
  BlockGraph() : model_(make_model(config_of(std::get<0>(GetParam())), std::get<1>(GetParam()))), weights_(model_) {
    at::manual_seed(7);
    fill_with_noise(model_, weights_);
    const at::ScalarType type = scalar_type(model_.dtype);
    hidden_ = at::randn({kBatch, kLength, model_.config.hidden}).to(type);
    gradient_ = at::randn({kBatch, kLength, model_.config.hidden}).to(type);
    positions_ = make_positions(model_.config, kLength);
  }

  UseFunction block(BlockResult wanted = BlockResult::values) const {
    return [this, wanted](const WeightTensors& weights, const at::Tensor& hidden) {
      const DropoutKeys keys{.training = true, .seed = 3, .step = 5, .micro_batch = 1};
      return block_forward(model_.config, kUse - 1, weights, hidden, positions_, keys, nullptr, wanted);
    };
  }

  // Forward and backward under leases of the weights, which move in between.
  std::pair<at::Tensor, UseGradients> under_leases(const Way& way) {
    const ComputePass forward{Direction::forward, kUse, 1}, backward{Direction::backward, kUse, 1};
    at::Tensor result;
    std::unique_ptr<UseGraph> graph;
    auto lent = *weights_.acquire(forward);
    if (way.recorded) {
      graph = std::move(*UseGraph::record(model_, block(), lent, hidden_, HiddenGradient::needed,
                                          std::make_shared<SavedTensors>(way.keeping, weights_, kUse, 1)));
      result = graph->take_result();
    } else {
      result = *forward_only(model_, block(), lent, hidden_);
    }
    EXPECT_TRUE(weights_.release(forward).ok());
    lent = *weights_.acquire(backward);
    UseGradients gradients =
        way.recorded ? *graph->backward(lent, gradient_)
                     : *recompute(model_, block(BlockResult::graph), lent, hidden_, HiddenGradient::needed, gradient_);
    EXPECT_TRUE(weights_.release(backward).ok());
    return {result, gradients};
  }

  const Model model_;
  MovingWeights weights_;
  at::Tensor hidden_, gradient_;
  Positions positions_;
};

// Bit for bit: at::equal takes 0 and -0 for the same, and so do we.
void expect_equal(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  ASSERT_TRUE(got.defined() && expected.defined()) << what;
  ASSERT_TRUE(at::isfinite(expected).all().item<bool>()) << what;
  EXPECT_TRUE(at::equal(got, expected)) << what << ": differs by up to "
                                        << (got.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
}

TEST_P(BlockGraph, KeepRecomputeAndOffloadEqualAutogradOverPlainTensorsWhileTheWeightsMove) {
  // What PyTorch would do: tensors of their own, autograd, nothing moved.
  WeightTensors plain = views_of(model_, *weights_.acquire({Direction::forward, kUse, 0}), at::kCPU);
  std::vector<at::Tensor> inputs;
  for (const ModelParameter& parameter : model_.units[kUse].parameters) {
    plain[parameter.role] = plain[parameter.role].clone().requires_grad_();
    inputs.push_back(plain[parameter.role]);
  }
  ASSERT_TRUE(weights_.release({Direction::forward, kUse, 0}).ok());
  const at::Tensor hidden = hidden_.clone().requires_grad_();
  inputs.push_back(hidden);
  const at::Tensor expected = block()(plain, hidden);
  const std::vector<at::Tensor> gradients = torch::autograd::grad({expected}, inputs, {gradient_});

  for (const Way& way : kWays) {
    const auto [result, got] = under_leases(way);
    expect_equal(result, expected.detach(), std::string(way.name) + ": forward");
    for (size_t i = 0; i < got.parameters.size(); ++i)
      expect_equal(got.parameters[i], gradients[i],
                   std::string(way.name) + ": " + model_.units[kUse].parameters[i].name);
    expect_equal(got.hidden, gradients.back(), std::string(way.name) + ": hidden");
    EXPECT_TRUE(weights_.put_.empty()) << way.name << " left activations with the engine";
  }
}

TEST_P(BlockGraph, OffloadLeavesNoActivationInMemoryAndPutsEachOnce) {
  const ComputePass forward{Direction::forward, kUse, 1};
  auto saved = std::make_shared<SavedTensors>(Keeping::with_engine, weights_, kUse, 1);
  auto graph = *UseGraph::record(model_, block(), *weights_.acquire(forward), hidden_, HiddenGradient::needed, saved);
  const std::weak_ptr<SavedTensors> alive = saved;
  saved.reset();
  EXPECT_FALSE(alive.expired());
  // The boundary, and of what the block computes the matrices' inputs at least.
  EXPECT_GT(weights_.put_bytes_, 3 * hidden_.nbytes());
  std::map<std::vector<std::byte>, int> contents;
  for (const auto& [key, bytes] : weights_.put_) ++contents[bytes];
  for (const auto& [bytes, times] : contents) EXPECT_EQ(times, 1) << bytes.size() << " B were put twice";
  EXPECT_LT(weights_.put_bytes_, 40 * hidden_.nbytes());
  graph.reset();
  EXPECT_TRUE(alive.expired());
  ASSERT_TRUE(weights_.release(forward).ok());
}

TEST_P(BlockGraph, ARefusedPutEndsForwardWithThatRefusal) {
  weights_.refuse_put_after_ = 2;
  const auto graph =
      UseGraph::record(model_, block(), *weights_.acquire({Direction::forward, kUse, 1}), hidden_,
                       HiddenGradient::needed, std::make_shared<SavedTensors>(Keeping::with_engine, weights_, kUse, 1));
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.status().message(), "no room for activations");
}

// Allocators put an activation right behind the weights now and then; of another dtype, it has fewer elements per byte.
TEST(SavedTensors, WhatLiesBehindLentWeightsIsNotTakenForOne) {
  const Model model = make_model(config_of(small_models()[0]), Dtype::bf16);
  MovingWeights engine(model);
  const uint64_t bytes = model.units[1].elements * 2;
  std::vector<float> memory(bytes / 4 + 64 + 64, 3.0f);
  auto* begin = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  const UnitWeights lent[] = {{1, model.units[1].elements, {begin, bytes}}};
  const at::Tensor behind = at::from_blob(begin + bytes, {16}, at::kFloat);
  const UseFunction function = [&](const WeightTensors&, const at::Tensor& hidden) { return hidden * behind; };
  auto graph = *UseGraph::record(model, function, lent, at::randn({16}), HiddenGradient::needed,
                                 std::make_shared<SavedTensors>(Keeping::in_memory, engine, 1, 0));
  std::vector<float> elsewhere(memory.size(), 5.0f);
  auto* other = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(elsewhere.data()) + 63) / 64 * 64);
  const UnitWeights again[] = {{1, model.units[1].elements, {other, bytes}}};
  const auto gradients = graph->backward(again, at::randn({16}).fill_(1));
  ASSERT_TRUE(gradients.ok()) << gradients.status().message();
  EXPECT_TRUE(at::equal(gradients->hidden, at::randn({16}).fill_(3)));
}

INSTANTIATE_TEST_SUITE_P(
    OfEachModel, BlockGraph,
    ::testing::Combine(::testing::ValuesIn(small_models()), ::testing::Values(Dtype::fp32, Dtype::bf16, Dtype::fp16)),
    [](const auto& tried) {
      const Dtype dtype = std::get<1>(tried.param);
      return std::get<0>(tried.param).name + (dtype == Dtype::fp32 ? "Fp32" : dtype == Dtype::bf16 ? "Bf16" : "Fp16");
    });

}  // namespace
}  // namespace penstock::trainer
