// The header of spans and the C functions do what TileUpdater does.
#include "cpu_optim/penstock_optim.h"

#include <gtest/gtest.h>
#include "cpu_optim/spans.h"
#include "tests/cpu_optim/tile_world.h"
#include "tiering/arithmetic/optimizer.h"

namespace penstock::cpu_optim {
namespace {

constexpr uint64_t kElements = 1003;

struct Arrays {
  std::vector<float> p = std::vector<float>(kElements, 0.5f), m = std::vector<float>(kElements),
                     v = std::vector<float>(kElements);
};

TEST(Embedding, SpansAndCFunctionsLeaveEqualBits) {
  using CFunction = int (*)(const penstock_arrays*, const penstock_rates*, uint64_t);
  const std::pair<OptimizerKind, CFunction> functions[] = {{OptimizerKind::adamw, penstock_adamw},
                                                           {OptimizerKind::adam, penstock_adam},
                                                           {OptimizerKind::adagrad, penstock_adagrad},
                                                           {OptimizerKind::lion, penstock_lion},
                                                           {OptimizerKind::sgd, penstock_sgd}};
  for (auto [kind, function] : functions) {
    Random random(1);
    Arrays spans, c;
    std::vector<uint16_t> weight(kElements);
    const Hyper h = usual_hyper(kind);
    const penstock_rates rates{h.lr, h.beta1, h.beta2, h.eps, h.weight_decay, h.momentum, h.dampening, h.lr_decay, 0};
    for (uint64_t number = 1; number <= 3; ++number) {
      std::vector<float> g(kElements);
      for (float& x : g) x = random.normal(1e-3f);
      std::span<float> m = arithmetic::has_momentum(kind) ? std::span(spans.m) : std::span<float>();
      std::span<float> v = arithmetic::has_variance(kind) ? std::span(spans.v) : std::span<float>();
      step(kind, h, number, {.weight = spans.p, .gradient = g, .momentum = m, .variance = v, .gradient_scale = 0.5f});
      double square_sum = 0;
      penstock_arrays arrays{kElements,  c.p.data(),    weight.data(), g.data(),    c.m.data(),
                             c.v.data(), PENSTOCK_BF16, PENSTOCK_FP32, &square_sum, 0.5f};
      ASSERT_EQ(function(&arrays, &rates, number), 0);
      double expected = 0;
      for (float x : g) expected += double{x} * double{x};
      ASSERT_NEAR(square_sum, expected, expected * 1e-12);
    }
    EXPECT_EQ(spans.p, c.p);
    EXPECT_EQ(spans.m, c.m);
    EXPECT_EQ(spans.v, c.v);
    for (uint64_t i = 0; i < kElements; ++i) ASSERT_EQ(weight[i], arithmetic::bf16_of_float(c.p[i]));
  }
}

TEST(Embedding, CFunctionsRefuseWhatTheyCannotDoAndWriteNothing) {
  Arrays a;
  std::vector<float> g(kElements, 1.0f);
  penstock_rates rates{1e-3, 0.9, 0.999, 1e-8, 0, 0, 0, 0, 0};
  penstock_arrays arrays{kElements, a.p.data(), nullptr, g.data(), a.m.data(), a.v.data(), 0, 0, nullptr, 1.0f};
  EXPECT_EQ(penstock_adamw(&arrays, &rates, 0), 2);
  EXPECT_EQ(penstock_adamw(nullptr, &rates, 1), 2);
  arrays.gradient_dtype = 7;
  EXPECT_EQ(penstock_adamw(&arrays, &rates, 1), 2);
  arrays.gradient_dtype = PENSTOCK_FP32;
  arrays.variance = nullptr;
  EXPECT_EQ(penstock_adamw(&arrays, &rates, 1), 2);
  EXPECT_EQ(penstock_lion(&arrays, &rates, 1), 0) << "lion has no variance";
  arrays.variance = a.v.data();
  rates.beta1 = 1;
  EXPECT_EQ(penstock_adamw(&arrays, &rates, 1), 2);
  rates.beta1 = 0.9;
  double squares = 123;
  penstock_arrays nothing{0, nullptr, nullptr, nullptr, nullptr, nullptr, 0, 0, &squares, 1.0f};
  EXPECT_EQ(penstock_adamw(&nothing, &rates, 1), 0);
  EXPECT_EQ(squares, 0);
  rates.lr = -1;
  EXPECT_EQ(penstock_adamw(&nothing, &rates, 1), 2);
  EXPECT_EQ(penstock_optim_use_isa("mmx"), 2);
  EXPECT_EQ(penstock_optim_use_isa(penstock_optim_isa()), 0);
}

}  // namespace
}  // namespace penstock::cpu_optim
