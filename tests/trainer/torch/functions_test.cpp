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

#include "runtime/trainer/counter_random.h"

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
  const at::Tensor y = rotated(x, positions.turns);
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

// A device draws by LibTorch's operations what the host draws in a loop.
TEST(Dropout, DrawsTheSameNumbersByTensors) {
  for (const uint64_t key : {uint64_t{77}, ~uint64_t{0}, stream_key(5, 3, 2, 1)}) {
    for (const int64_t first : {int64_t{0}, (int64_t{1} << 32) - 3, int64_t{12345678901}}) {
      const at::Tensor bits = stream_bits_of(key, first, 4096, at::kCPU);
      for (int64_t i = 0; i < bits.numel(); ++i) {
        ASSERT_EQ(bits.const_data_ptr<int64_t>()[i], stream_bits(key, static_cast<uint64_t>(first + i)))
            << key << ' ' << i;
      }
    }
  }
}

}  // namespace
}  // namespace penstock::trainer
