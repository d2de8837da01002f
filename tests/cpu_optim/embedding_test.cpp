// The header of spans and the C functions do what TileUpdater does.
#include "cpu_optim/penstock_optim.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <tuple>

#include "cpu_optim/gradient.h"
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
      const Spans all{.weight = spans.p, .gradient = g, .momentum = m, .variance = v, .gradient_scale = 0.5f};
      ASSERT_TRUE(step(kind, h, number, all).ok());
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
  const Arrays taken = a;
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
  rates.lr = 1e-3;
  rates.eps = 0;
  EXPECT_EQ(penstock_adamw(&arrays, &rates, 1), 2);
  rates.eps = 1e-8;
  arrays.gradient_scale = INFINITY;
  EXPECT_EQ(penstock_adamw(&arrays, &rates, 1), 2);
  arrays.gradient_scale = 1;
  for (void* place : {static_cast<void*>(a.p.data() + kElements - 1), static_cast<void*>(a.m.data()),
                      static_cast<void*>(reinterpret_cast<std::byte*>(g.data()) + 4 * kElements - 1)}) {
    arrays.weight = place;
    arrays.weight_dtype = PENSTOCK_BF16;
    EXPECT_EQ(penstock_adamw(&arrays, &rates, 1), 2) << "arrays overlap";
  }
  arrays.weight = nullptr;
  arrays.gradient_square_sum = reinterpret_cast<double*>(a.v.data() + 2);
  EXPECT_EQ(penstock_adamw(&arrays, &rates, 1), 2) << "the sum is written into the variance";
  arrays.gradient_square_sum = nullptr;
  arrays.elements = ~uint64_t{0} / 4;
  EXPECT_EQ(penstock_adamw(&arrays, &rates, 1), 2) << "arrays end past the end of memory";
  arrays.elements = kElements;
  EXPECT_EQ(std::tuple(a.p, a.m, a.v), std::tuple(taken.p, taken.m, taken.v)) << "what was refused wrote nothing";
  EXPECT_EQ(penstock_optim_use_isa("mmx"), 2);
  EXPECT_EQ(penstock_optim_use_isa(penstock_optim_isa()), 0);
}

TEST(Embedding, SpansRefuseWhatTheyCannotDoAndWriteNothing) {
  Arrays a;
  std::vector<float> g(kElements, 1.0f);
  const auto kind = OptimizerKind::adamw;
  const Spans good{.weight = a.p, .gradient = g, .momentum = a.m, .variance = a.v};
  const auto refusal = [&](OptimizerKind of, const Hyper& hyper, uint64_t number, const Spans& spans) {
    const Status status = step(of, hyper, number, spans);
    EXPECT_EQ(a.p, Arrays().p);
    EXPECT_EQ(a.m, Arrays().m);
    EXPECT_EQ(a.v, Arrays().v);
    return status.message();
  };
  const auto with = [&](auto change) {
    Spans spans = good;
    change(spans);
    return refusal(kind, {}, 1, spans);
  };
  EXPECT_EQ(refusal(kind, {.eps = 0}, 1, good), "adamw: eps: 0");
  EXPECT_EQ(refusal(kind, {}, 0, good), "adamw: step 0");
  EXPECT_EQ(with([](Spans& s) { s.gradient_scale = NAN; }), "adamw: gradient_scale: nan");
  EXPECT_EQ(with([](Spans& s) { s.gradient = s.gradient.first(7); }), "adamw: gradient: 7 elements, not 1003");
  EXPECT_EQ(with([](Spans& s) { s.momentum = s.momentum.first(1002); }), "adamw: momentum: 1002 elements, not 1003");
  EXPECT_EQ(with([](Spans& s) { s.variance = {}; }), "adamw: variance: 0 elements, not 1003");
  EXPECT_EQ(refusal(OptimizerKind::lion, {}, 1, good), "lion: variance: 1003 elements, not 0");
  EXPECT_EQ(refusal(OptimizerKind::adagrad, {}, 1, good), "adagrad: momentum: 1003 elements, not 0");
  EXPECT_EQ(with([](Spans& s) { s.variance = s.momentum; }), "adamw: spans overlap, or lie nowhere");
  EXPECT_EQ(with([](Spans& s) { s.gradient = s.weight; }), "adamw: spans overlap, or lie nowhere");
  std::vector<float> both(2 * kElements);
  EXPECT_EQ(with([&](Spans& s) {
              s.momentum = std::span(both).first(kElements);
              s.variance = std::span(both).subspan(kElements - 1, kElements);
            }),
            "adamw: spans overlap, or lie nowhere");
  Spans neighbours = good;
  neighbours.momentum = std::span(both).first(kElements);
  neighbours.variance = std::span(both).subspan(kElements);
  EXPECT_TRUE(step(kind, {}, 1, neighbours).ok());
  EXPECT_TRUE(step(kind, {}, 1, {.weight = {}, .gradient = {}}).ok()) << "no elements";
}

// The caller's rounding mode reaches neither coefficients nor kernels nor sums.
TEST(Embedding, LeavesTheSameBitsInEveryModeOfTheCallers) {
  const auto stepped = [](int rounding) {
    Random random(3);
    Arrays a, c;
    std::vector<float> g(kElements);
    for (float& x : g) x = random.normal(1e-3f);
    const Hyper h = {.weight_decay = 0.1};
    const penstock_rates rates{h.lr, h.beta1, h.beta2, h.eps, h.weight_decay, 0, 0, 0, 0};
    double square_sum = 0;
    penstock_arrays arrays{kElements,  c.p.data(), nullptr,       g.data(),    c.m.data(),
                           c.v.data(), 0,          PENSTOCK_FP32, &square_sum, 0.3f};
    const int before = std::fegetround();
    std::fesetround(rounding);
    for (uint64_t number = 1; number <= 3; ++number) {
      EXPECT_TRUE(step(OptimizerKind::adamw, h, number,
                       {.weight = a.p, .gradient = g, .momentum = a.m, .variance = a.v, .gradient_scale = 0.3f})
                      .ok());
      EXPECT_EQ(penstock_adamw(&arrays, &rates, number), 0);
    }
    EXPECT_EQ(std::fegetround(), rounding) << "the caller's mode is as it was";
    std::fesetround(before);
    EXPECT_EQ(a.p, c.p);
    return std::tuple(a.p, a.m, a.v, square_sum);
  };
  const auto nearest = stepped(FE_TONEAREST);
  for (int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) EXPECT_EQ(stepped(rounding), nearest) << rounding;
}

#if defined(__x86_64__)  // elsewhere a processor may have no traps
// Who looks for mistakes with feenableexcept() does not find ours: infinity is a number like any other here.
TEST(Embedding, TrapsNothingThatTheCallerTraps) {
  Arrays a;
  std::vector<float> g(kElements, 1e-3f);
  g[5] = INFINITY, g[6] = 1e-40f;
  const Spans spans{.weight = a.p, .gradient = g, .momentum = a.m, .variance = a.v};
  double square_sum = 0;
  feenableexcept(FE_ALL_EXCEPT);
  const Status status = step(OptimizerKind::adamw, {.weight_decay = 0.1}, 1, spans);
  GradientKernels().square_sums(Dtype::fp32, std::as_bytes(spans.gradient).data(), kElements, {&square_sum, 1});
  const int trapped = fedisableexcept(FE_ALL_EXCEPT);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(square_sum, INFINITY);
  EXPECT_EQ(trapped, FE_ALL_EXCEPT) << "what the caller traps is as it was";
}
#endif

}  // namespace
}  // namespace penstock::cpu_optim
