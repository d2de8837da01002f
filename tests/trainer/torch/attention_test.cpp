#include "runtime/trainer/torch/attention.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/trainer/torch/tensor_memory.h"

namespace penstock::trainer {
namespace {

// In fp32 both sides of a comparison round at other places; sums here have at most some hundred terms around 1.
constexpr double kTolerance = 2e-5;

struct Inputs {
  at::Tensor query, key, value;

  Inputs(int64_t batch, int64_t length, int64_t heads, int64_t kv_heads, int64_t size)
      : query(at::randn({batch, length, heads, size}).requires_grad_()),
        key(at::randn({batch, length, kv_heads, size}).requires_grad_()),
        value(at::randn({batch, length, kv_heads, size}).requires_grad_()) {}
};

at::Tensor attended(const Inputs& inputs, const AttentionShape& shape) {
  return attended(inputs.query, inputs.key, inputs.value, shape);
}

std::vector<at::Tensor> gradients(const at::Tensor& result, const Inputs& inputs, const at::Tensor& gradient) {
  return torch::autograd::grad({result}, {inputs.query, inputs.key, inputs.value}, {gradient});
}

// All weights at once, heads repeated: what grouping, kernels and runs of queries must equal.
at::Tensor formula(const Inputs& inputs, const AttentionShape& shape) {
  const int64_t length = inputs.query.size(1), share = inputs.query.size(2) / inputs.key.size(2);
  auto repeated = [&](const at::Tensor& x) { return x.repeat_interleave(share, 2).transpose(1, 2); };
  at::Tensor scores = inputs.query.transpose(1, 2).matmul(repeated(inputs.key).transpose(-1, -2)) * shape.scale;
  if (shape.softcap > 0) scores = (scores / shape.softcap).tanh() * shape.softcap;
  at::Tensor mask = at::ones({length, length}).tril();
  if (shape.window > 0) mask = mask - at::ones({length, length}).tril(-static_cast<int64_t>(shape.window));
  const at::Tensor weights = scores.masked_fill(mask == 0, -INFINITY).softmax(-1);
  return weights.matmul(repeated(inputs.value)).transpose(1, 2).flatten(2);
}

void expect_the_formula(const Inputs& inputs, const AttentionShape& shape) {
  const at::Tensor ours = attended(inputs, shape), expected = formula(inputs, shape);
  EXPECT_TRUE(at::allclose(ours, expected, kTolerance, kTolerance));
  const at::Tensor gradient = at::randn(expected.sizes());
  const auto of_formula = gradients(expected, inputs, gradient), got = gradients(ours, inputs, gradient);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::allclose(got[i], of_formula[i], kTolerance, kTolerance)) << i;
}

struct Shape {
  int64_t batch, heads, kv_heads;
  uint32_t window;
};

class Attention : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override { at::manual_seed(3); }
};

TEST_P(Attention, EqualsTheWholeMatrixWithRepeatedHeads) {
  const auto [batch, heads, kv_heads, window] = GetParam();
  const Inputs inputs(batch, 19, heads, kv_heads, 16);
  expect_the_formula(inputs, {.scale = 0.3, .window = window});
  // As good as no dropout: the other way of computing.
  expect_the_formula(inputs, {.scale = 0.3, .window = window, .dropout = 1e-12});
}

// Longer than a run of queries, and ending within one; windows that are shorter and longer than one.
TEST_P(Attention, WithBoundedScoresEqualsTheWholeMatrix) {
  const auto [batch, heads, kv_heads, window] = GetParam();
  const Inputs inputs(batch, 2 * 128 + 19, heads, kv_heads, 8);
  expect_the_formula(inputs, {.scale = 0.3, .softcap = 1.5, .window = window});
  expect_the_formula(inputs, {.scale = 0.3, .softcap = 1.5, .window = 10 * window});
}

INSTANTIATE_TEST_SUITE_P(Shapes, Attention,
                         ::testing::Values(Shape{1, 4, 4, 0}, Shape{2, 4, 4, 0}, Shape{1, 6, 2, 0}, Shape{2, 6, 2, 0},
                                           Shape{1, 4, 1, 5}, Shape{2, 4, 4, 5}, Shape{1, 4, 2, 19}, Shape{1, 4, 2, 18},
                                           Shape{1, 4, 2, 1}));

// Values of one are summed up to the share of weights that is kept, by their 1 / (1 - p).
TEST(AttentionDropout, DropsItsShareInEveryRunAndTheSameInBackward) {
  const int64_t length = 300;
  Inputs inputs(1, length, 2, 1, 4);
  inputs.query = at::zeros(inputs.query.sizes()).requires_grad_();
  inputs.value = at::ones(inputs.value.sizes()).requires_grad_();
  const AttentionShape shape{.dropout = 0.25, .dropout_key = 77};
  const at::Tensor out = attended(inputs, shape);
  EXPECT_NEAR(out.mean().item<double>(), 1, 0.03);
  for (const int64_t position : {100, 227, 299}) {  // one of each run, whose weights are all 1 / (position + 1)
    const double sum = out[0][position][0].item<double>(), kept = sum * 0.75 * static_cast<double>(position + 1);
    EXPECT_NEAR(kept, std::round(kept), 1e-3) << position;
    EXPECT_LT(kept, position + 1) << position;
  }
  EXPECT_FALSE(at::equal(out[0][10], out[0][138])) << "runs draw apart";
  // The gradient of a value is the sum of the weights that it was multiplied by.
  const at::Tensor of_value = gradients(out, inputs, at::ones(out.sizes()))[2];
  EXPECT_NEAR(of_value.sum().item<double>(), out.sum().item<double>(), 1e-2);
  EXPECT_TRUE(at::equal(attended(inputs, shape), out));
}

// Twice the tokens take about twice the memory, where a matrix of scores would take four times as much.
TEST(AttentionMemory, OfBoundedScoresGrowsWithTheTokens) {
  TensorMemory& memory = TensorMemory::get();
  ASSERT_TRUE(memory.installed());
  auto peak_of = [&](int64_t length) {
    const Inputs inputs(1, length, 2, 1, 8);
    const uint64_t before = memory.live_bytes();
    memory.reset_peak();
    const at::Tensor out = attended(inputs, {.softcap = 2});
    (void)gradients(out, inputs, at::ones(out.sizes()));
    return memory.peak_bytes() - before;
  };
  const uint64_t shorter = peak_of(1024), longer = peak_of(2048);
  EXPECT_LT(longer, 5 * shorter / 2);
  EXPECT_LT(longer, 2048u * 2048 * 2 * sizeof(float)) << "the scores of all heads";
}

}  // namespace
}  // namespace penstock::trainer
