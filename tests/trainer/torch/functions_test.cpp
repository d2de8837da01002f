#include "runtime/trainer/torch/functions.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rsqrt.h>
#include <gtest/gtest.h>

#include <cmath>

namespace penstock::trainer {
namespace {

// In fp32 both sides of a comparison round at other places; sums here have at most some hundred terms around 1.
constexpr double kTolerance = 2e-5;

std::vector<at::Tensor> gradients(const at::Tensor& result, const std::vector<at::Tensor>& inputs,
                                  const at::Tensor& gradient) {
  return torch::autograd::grad({result}, inputs, {gradient});
}

TEST(RmsNorm, IsItsFormulaAndHasItsFormulasGradient) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({2, 5, 48}).requires_grad_(), weight = at::randn({48}).requires_grad_();
  const at::Tensor gradient = at::randn({2, 5, 48});
  const at::Tensor formula = x * at::rsqrt((x * x).mean(-1, true) + 1e-6) * weight;
  const at::Tensor ours = rms_norm(x, weight, 1e-6);
  EXPECT_TRUE(at::allclose(ours, formula, kTolerance, kTolerance));
  const auto expected = gradients(formula, {x, weight}, gradient), got = gradients(ours, {x, weight}, gradient);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(at::allclose(got[i], expected[i], kTolerance, kTolerance)) << i;
}

// A rotation keeps lengths, and backward turns back.
TEST(Rotate, TurnsPairsAndItsGradientTurnsThemBack) {
  at::manual_seed(2);
  ModelConfig config;
  config.head_size = 8;
  const Positions positions = make_positions(config, 6);
  const at::Tensor x = at::randn({1, 6, 3, 8}).requires_grad_();
  const at::Tensor y = rotated(x, positions);
  EXPECT_TRUE(at::equal(y.select(1, 0), x.select(1, 0)));
  EXPECT_FALSE(at::allclose(y.select(1, 1), x.select(1, 1)));
  EXPECT_TRUE(at::allclose(gradients(y, {x}, y.detach())[0], x, kTolerance, kTolerance));
  // The first pair of position 5 has turned by 5 rad.
  const float a = x[0][5][1][0].item<float>(), b = x[0][5][1][4].item<float>();
  EXPECT_NEAR(y[0][5][1][0].item<float>(), a * std::cos(5.0f) - b * std::sin(5.0f), 1e-5);
  EXPECT_NEAR(y[0][5][1][4].item<float>(), b * std::cos(5.0f) + a * std::sin(5.0f), 1e-5);
}

TEST(Dropout, DropsItsShareByNumberAndTheSameInBackward) {
  const int64_t n = 1 << 20;
  const at::Tensor x = at::ones({n}).requires_grad_();
  const at::Tensor y = dropped(x, 0.1, 77);
  const double share = (y == 0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(share, 0.1, 5 * std::sqrt(0.1 * 0.9 / n));  // five standard deviations
  EXPECT_TRUE(at::equal(gradients(y, {x}, at::ones({n}))[0], y));
  EXPECT_NEAR(y.max().item<float>(), 1 / 0.9, 1e-6);
  EXPECT_TRUE(at::equal(dropped(at::ones({n / 2}), 0.1, 77), y.narrow(0, 0, n / 2)));
  const at::Tensor other = dropped(at::ones({n}), 0.1, 78);
  const double both = ((y == 0) * (other == 0)).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(both, 0.01, 5 * std::sqrt(0.01 * 0.99 / n));
  EXPECT_TRUE(dropped(x, 0, 77).is_same(x));
}

struct Shape {
  int64_t batch, heads, kv_heads;
  uint32_t window;
};

class Attention : public ::testing::TestWithParam<Shape> {};

// Attention with weights of dropout 0 but computed openly, heads repeated, is what grouping and kernels must equal.
TEST_P(Attention, EqualsTheWholeMatrixWithRepeatedHeads) {
  const Shape shape = GetParam();
  at::manual_seed(3);
  const int64_t length = 19, size = 16, share = shape.heads / shape.kv_heads;
  const at::Tensor q = at::randn({shape.batch, length, shape.heads, size}).requires_grad_();
  const at::Tensor k = at::randn({shape.batch, length, shape.kv_heads, size}).requires_grad_();
  const at::Tensor v = at::randn({shape.batch, length, shape.kv_heads, size}).requires_grad_();
  const AttentionShape how{.scale = 0.3, .window = shape.window};
  const at::Tensor ours = attended(q, k, v, how);

  auto repeated = [&](const at::Tensor& x) { return x.repeat_interleave(share, 2).transpose(1, 2); };
  at::Tensor scores = q.transpose(1, 2).matmul(repeated(k).transpose(-1, -2)) * 0.3;
  at::Tensor mask = at::ones({length, length}).tril();
  if (shape.window > 0) mask = mask - at::ones({length, length}).tril(-static_cast<int64_t>(shape.window));
  scores = scores.masked_fill(mask == 0, -INFINITY).softmax(-1);
  const at::Tensor formula = scores.matmul(repeated(v)).transpose(1, 2).reshape({shape.batch, length, -1});
  EXPECT_TRUE(at::allclose(ours, formula, kTolerance, kTolerance));

  const at::Tensor gradient = at::randn(formula.sizes());
  const auto expected = gradients(formula, {q, k, v}, gradient), got = gradients(ours, {q, k, v}, gradient);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::allclose(got[i], expected[i], kTolerance, kTolerance)) << i;

  // As good as no dropout: the other way of computing.
  AttentionShape open = how;
  open.dropout = 1e-12;
  EXPECT_TRUE(at::allclose(attended(q, k, v, open), formula, kTolerance, kTolerance));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Attention,
                         ::testing::Values(Shape{1, 4, 4, 0}, Shape{2, 4, 4, 0}, Shape{1, 6, 2, 0}, Shape{2, 6, 2, 0},
                                           Shape{1, 4, 1, 5}, Shape{2, 4, 4, 5}, Shape{1, 4, 2, 19}, Shape{1, 4, 2, 18},
                                           Shape{1, 4, 2, 1}));

}  // namespace
}  // namespace penstock::trainer
