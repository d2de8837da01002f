// The C functions do what TileUpdater does, and refuse what they cannot do.
#include "cpu_optim/penstock_optim.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <tuple>

#include "cpu_optim/gradient.h"
#include "cpu_optim/tile_update.h"
#include "tests/cpu_optim/tile_world.h"
#include "tiering/arithmetic/optimizer.h"

namespace penstock::cpu_optim {
namespace {

constexpr uint64_t kElements = 1003;

struct Arrays {
  std::vector<float> p = std::vector<float>(kElements, 0.5f), m = std::vector<float>(kElements),
                     v = std::vector<float>(kElements);
};

// One step of TileUpdater over the same arrays.
void update(OptimizerKind kind, const Hyper& hyper, uint64_t number, float gradient_scale, const std::vector<float>& g,
            Arrays& a) {
  const StateForm form{kind, MasterForm::same, MomentForm::fp32, Dtype::fp32, Dtype::fp32};
  const auto in_place = [](std::vector<float>& values) {
    return PlaneView::in_place(std::as_writable_bytes(std::span(values)).data());
  };
  TileView tile;
  tile.elements = kElements;
  tile.weight = in_place(a.p);
  tile.gradient = std::as_bytes(std::span(g)).data();
  size_t plane = 0;
  for (const Plane& p : resting_planes(form)) tile.planes[plane++] = in_place(p.role == Role::momentum ? a.m : a.v);
  TileUpdater(form).update(tile, {make_coefficients(kind, hyper, number), gradient_scale, /*seed=*/0, number});
}

TEST(Embedding, CFunctionsLeaveTheBitsOfTileUpdater) {
  using CFunction = int (*)(const penstock_arrays*, const penstock_rates*, uint64_t);
  const std::pair<OptimizerKind, CFunction> functions[] = {{OptimizerKind::adamw, penstock_adamw},
                                                           {OptimizerKind::adam, penstock_adam},
                                                           {OptimizerKind::adagrad, penstock_adagrad},
                                                           {OptimizerKind::lion, penstock_lion},
                                                           {OptimizerKind::sgd, penstock_sgd}};
  for (auto [kind, function] : functions) {
    Random random(1);
    Arrays expected, c;
    std::vector<uint16_t> weight(kElements);
    const Hyper h = usual_hyper(kind);
    const penstock_rates rates{h.lr, h.beta1, h.beta2, h.eps, h.weight_decay, h.momentum, h.dampening, h.lr_decay, 0};
    for (uint64_t number = 1; number <= 3; ++number) {
      std::vector<float> g(kElements);
      for (float& x : g) x = random.normal(1e-3f);
      update(kind, h, number, 0.5f, g, expected);
      double square_sum = 0;
      penstock_arrays arrays{kElements,  c.p.data(),    weight.data(), g.data(),    c.m.data(),
                             c.v.data(), PENSTOCK_BF16, PENSTOCK_FP32, &square_sum, 0.5f};
      ASSERT_EQ(function(&arrays, &rates, number), 0);
      double squares = 0;
      for (float x : g) squares += double{x} * double{x};
      ASSERT_NEAR(square_sum, squares, squares * 1e-12);
    }
    EXPECT_EQ(expected.p, c.p);
    EXPECT_EQ(expected.m, c.m);
    EXPECT_EQ(expected.v, c.v);
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
  std::vector<float> beside(4 * kElements, 0.5f);  // in one piece, as an arena has them
  const penstock_arrays touching{kElements,
                                 beside.data(),
                                 nullptr,
                                 beside.data() + kElements,
                                 beside.data() + 2 * kElements,
                                 beside.data() + 3 * kElements,
                                 0,
                                 0,
                                 nullptr,
                                 1.0f};
  EXPECT_EQ(penstock_adamw(&touching, &rates, 1), 0) << "arrays that touch do not overlap";
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

// The caller's rounding mode reaches neither coefficients nor kernels nor sums.
TEST(Embedding, LeavesTheSameBitsInEveryModeOfTheCallers) {
  const auto stepped = [](int rounding) {
    Random random(3);
    Arrays c;
    std::vector<float> g(kElements);
    for (float& x : g) x = random.normal(1e-3f);
    const Hyper h = {.weight_decay = 0.1};
    const penstock_rates rates{h.lr, h.beta1, h.beta2, h.eps, h.weight_decay, 0, 0, 0, 0};
    double square_sum = 0;
    penstock_arrays arrays{kElements,  c.p.data(), nullptr,       g.data(),    c.m.data(),
                           c.v.data(), 0,          PENSTOCK_FP32, &square_sum, 0.3f};
    const int before = std::fegetround();
    std::fesetround(rounding);
    for (uint64_t number = 1; number <= 3; ++number) EXPECT_EQ(penstock_adamw(&arrays, &rates, number), 0);
    EXPECT_EQ(std::fegetround(), rounding) << "the caller's mode is as it was";
    std::fesetround(before);
    return std::tuple(c.p, c.m, c.v, square_sum);
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
  const penstock_rates rates{1e-3, 0.9, 0.999, 1e-8, 0.1, 0, 0, 0, 0};
  double square_sum = 0;
  const penstock_arrays arrays{kElements,  a.p.data(), nullptr,       g.data(),    a.m.data(),
                               a.v.data(), 0,          PENSTOCK_FP32, &square_sum, 1.0f};
  feclearexcept(FE_ALL_EXCEPT);  // a test before this one may have left some
  feenableexcept(FE_ALL_EXCEPT);
  const int refused = penstock_adamw(&arrays, &rates, 1);
  const int trapped = fedisableexcept(FE_ALL_EXCEPT);
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(square_sum, INFINITY);
  EXPECT_EQ(trapped, FE_ALL_EXCEPT) << "what the caller traps is as it was";
}
#endif

}  // namespace
}  // namespace penstock::cpu_optim
