// What the definition holds besides the textbook's step: no denormal counts, one NaN, and hyper-parameters that kernels
// can hold.
#include <gtest/gtest.h>

#include "cpu_optim/flush_scope.h"
#include "cpu_optim/kernels.h"
#include "tests/cpu_optim/tile_world.h"

namespace penstock::cpu_optim {
namespace {

// Kernels called as they are, without the pass that sets flush-to-zero: with and without it the same bits.
class Flushing {
 public:
  Flushing(const StateForm& form, const Tile& tile, uint64_t elements)
      : form_(form), elements_(elements), kept_(tile), flushed_(tile) {}

  void step(const std::vector<std::byte>& gradient, const StepNumbers& numbers) {
    const UpdateKernel kernel = kernels_of(Isa::scalar)
                                    .update[static_cast<size_t>(form_.optimizer)][static_cast<size_t>(form_.master)]
                                           [static_cast<size_t>(form_.moments)];
    kernel(run_of(kept_, gradient, numbers), numbers.coefficients);
    FlushScope scope;
    kernel(run_of(flushed_, gradient, numbers), numbers.coefficients);
  }
  std::string difference() const { return kept_.difference(flushed_); }
  const Tile& tile() const { return kept_; }

 private:
  TilePart run_of(Tile& tile, const std::vector<std::byte>& gradient, const StepNumbers& numbers) const {
    TilePart run{};
    for (size_t i = 0; i < tile.planes().size(); ++i) run.planes[i] = PlaneView::in_place(tile.plane(i));
    run.gradient = gradient.data();
    run.elements = elements_;
    run.weight_dtype = form_.weight;
    run.gradient_dtype = form_.gradient;
    run.gradient_scale = numbers.gradient_scale;
    run.random_key = static_cast<uint32_t>(numbers.step * 77);
    return run;
  }

  const StateForm form_;
  const uint64_t elements_;
  Tile kept_, flushed_;
};

TEST(Definition, DoesNotDependOnHardwareFlushing) {
  // The last block of bytes has nothing but tiny numbers.
  constexpr uint64_t kElements = 1024, kTinyFrom = kElements - kMomentBlockElements;
  for (const StateForm& form : all_forms()) {
    Random random(7);
    Tile tile(form, kElements);
    for (uint64_t i = 0; i < kElements; ++i) {
      float master = random.number(Numbers::adversarial, 1e-2f);
      tile.set_master(i, i >= kTinyFrom || std::abs(master) < 0x1p-100f ? 0.0f : master);
    }
    Flushing flushing(form, tile, kElements);
    // Every fourth element has tiny gradients only. At last all are zero, until those moments would be denormal.
    for (uint64_t step = 1; step <= 80; ++step) {
      auto gradient = gradients(form.gradient, kElements, random, Numbers::adversarial);
      for (uint64_t i = 0; i < kElements; i += i < kTinyFrom ? 4 : 1) {
        put(gradient.data(), form.gradient, i, std::ldexp(random.normal(1), i < kTinyFrom ? -115 : -124));
      }
      if (step > 5) std::fill(gradient.begin(), gradient.end(), std::byte{0});
      flushing.step(gradient, numbers_of(form.optimizer, usual_hyper(form.optimizer), step));
      ASSERT_EQ(flushing.difference(), "") << describe(form) << ", step " << step;
    }
  }
}

// Rates that fade away, decays of almost all, the largest and the least of gradient scales: what is multiplied or
// divided is denormal then, beside weights so small that it counts.
TEST(Definition, DoesNotDependOnHardwareFlushingAtTheEdgesOfHyperParameters) {
  constexpr uint64_t kElements = 512;
  uint64_t tiny_weights = 0;
  for (const StateForm& form : all_forms()) {
    if (form.gradient != Dtype::fp32) continue;
    const bool is_adam = form.optimizer == OptimizerKind::adamw || form.optimizer == OptimizerKind::adam;
    const float least = is_adam && form.moments != MomentForm::fp32 ? 0x1p-63f : 0x1p-119f;
    for (const Hyper& hyper :
         {Hyper{.lr = 1e-9, .weight_decay = 0.1, .momentum = 0.9}, Hyper{.lr = 1e-36, .momentum = 0x1p-26},
          Hyper{.lr = 1, .weight_decay = 1 - 1e-6}, Hyper{.lr = 0x1p-110, .weight_decay = (1 - 1e-6) * 0x1p110},
          // What 1.5 times a power of two decays to by 0.625 + 2^-24 is halfway between two floats.
          Hyper{.lr = 0x1p-70, .eps = 1, .weight_decay = (0.375 - 0x1p-24) * 0x1p70},
          Hyper{.lr = 1e-3, .beta1 = 0x1p-26, .beta2 = 0x1p-26, .eps = 0x1p-126, .weight_decay = 1e-30},
          Hyper{.lr = 1, .beta1 = 1 - 0x1p-24, .beta2 = 1 - 0x1p-24, .eps = 1e-30}}) {
      for (float gradient_scale : {0x1p7f, 1.0f, 0x1p-100f, 0.0f}) {
        Random random(8);
        Tile tile(form, kElements);
        for (uint64_t i = 0; i < kElements; ++i) {
          const float master = std::ldexp(random.normal(1), -static_cast<int>(random.below(120)));
          const float weight = i % 3 == 0 ? std::ldexp(1.5f, std::ilogb(master)) : master;
          tile.set_master(i, std::abs(weight) < least ? 0.0f : weight);
        }
        Flushing flushing(form, tile, kElements);
        for (uint64_t step = 1; step <= 4; ++step) {
          std::vector<std::byte> gradient(kElements * 4);
          for (uint64_t i = 0; i < kElements; ++i) {
            put(gradient.data(), Dtype::fp32, i,
                std::ldexp(random.normal(1), -static_cast<int>(random.below(148)) + (gradient_scale < 1 ? 100 : 0)));
          }
          flushing.step(gradient, numbers_of(form.optimizer, hyper, step, gradient_scale));
          ASSERT_EQ(flushing.difference(), "")
              << describe(form) << ", lr " << hyper.lr << ", weight decay " << hyper.weight_decay << ", scale "
              << gradient_scale << ", step " << step;
        }
        for (uint64_t i = 0; i < kElements; ++i) {
          const float weight = std::abs(flushing.tile().master(i));
          tiny_weights += weight > 0 && weight < 0x1p-59f;
        }
      }
    }
  }
  EXPECT_GT(tiny_weights, 100'000u) << "the weights were to be tiny";
}

TEST(Definition, RefusesWhatKernelsCannotHold) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(validate(OptimizerKind::sgd, {.momentum = 0.9, .dampening = nan}).ok());
  EXPECT_FALSE(validate(OptimizerKind::sgd, {.momentum = 1e300}).ok());
  EXPECT_FALSE(validate(OptimizerKind::sgd, {.momentum = 1e-9}).ok());
  for (double much : {1e39, nan, infinity, -1.0}) {
    EXPECT_FALSE(validate(OptimizerKind::adamw, {.lr = much}).ok()) << much;
    EXPECT_FALSE(validate(OptimizerKind::adam, {.weight_decay = much}).ok()) << much;
    EXPECT_FALSE(validate(OptimizerKind::adagrad, {.eps = much}).ok()) << much;
  }
  EXPECT_FALSE(validate(OptimizerKind::sgd, {.lr = 2e12}).ok());
  EXPECT_FALSE(validate(OptimizerKind::lion, {.lr = 1e10, .weight_decay = 1e30}).ok());
  for (double beta : {1.0, 1 - 0x1p-25, 1e-9, -0.1, nan}) {
    EXPECT_FALSE(validate(OptimizerKind::adamw, {.beta1 = beta}).ok()) << beta;
    EXPECT_FALSE(validate(OptimizerKind::lion, {.beta2 = beta}).ok()) << beta;
  }
  EXPECT_TRUE(validate(OptimizerKind::adamw, {.beta1 = 0, .beta2 = 1 - 0x1p-24}).ok());
}

// Zero divided by zero otherwise: an embedding's row that no token has named yet.
TEST(Definition, RefusesAnEpsThatIsNoneToTheKernels) {
  for (OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::adagrad}) {
    for (double eps : {0.0, 1e-46, 1e-39, 0x1.fffp-127}) {
      const Status status = validate(kind, {.eps = eps});
      EXPECT_FALSE(status.ok()) << eps;
      EXPECT_NE(status.message().find("eps"), std::string::npos) << status.message();
    }
    EXPECT_TRUE(validate(kind, {.eps = 0x1p-126}).ok());
    for (MomentForm moments : {MomentForm::fp32, MomentForm::bf16, MomentForm::int8}) {
      const StateForm form{kind, MasterForm::same, moments, Dtype::fp32, Dtype::fp32};
      Tile tile(form, kMomentBlockElements);
      for (uint64_t i = 0; i < kMomentBlockElements; ++i) tile.set_master(i, 0.5f);
      const std::vector<std::byte> zeros(kMomentBlockElements * 4);
      for (uint64_t step = 1; step <= 3; ++step) {
        TileUpdater(form).update(tile.view(zeros.data(), 0, kMomentBlockElements),
                                 numbers_of(kind, {.eps = 0x1p-126}, step));
      }
      for (uint64_t i = 0; i < kMomentBlockElements; ++i) ASSERT_EQ(tile.master(i), 0.5f) << describe(form);
    }
  }
  EXPECT_TRUE(validate(OptimizerKind::lion, {.eps = 0}).ok()) << "lion has no eps";
  EXPECT_DEATH(make_coefficients(OptimizerKind::adamw, {.eps = 0}, 1), "eps");
}

// A rate that fades away is a rate of zero from some step on, for every step that is taken with it.
TEST(Definition, HasNoDenormalCoefficients) {
  for (double rate : {1e-37, 1e-38, 1e-40, 1e-44, 1e-50, 0.0}) {
    for (OptimizerKind kind :
         {OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::adagrad, OptimizerKind::lion, OptimizerKind::sgd}) {
      const Coefficients c = make_coefficients(kind, {.lr = rate, .weight_decay = rate, .lr_decay = rate}, 1);
      for (float number : {c.step_size, c.l2, c.decay, c.root_coefficient, c.root_constant, c.eps}) {
        EXPECT_TRUE(number == 0 || std::isnormal(number)) << name_of(kind) << " at " << rate << ": " << number;
      }
    }
  }
}

TEST(Definition, WritesNoDenormalAndOneNan) {
  constexpr uint64_t kElements = 8192;
  for (const StateForm& form : all_forms()) {
    if (form.moments != MomentForm::fp32) continue;
    Random random(8);
    Tile tile(form, kElements);
    tile.fill_masters(random, Numbers::adversarial);
    for (uint64_t step = 1; step <= 3; ++step) {
      auto gradient = gradients(form.gradient, kElements, random, Numbers::adversarial);
      TileUpdater(form).update(tile.view(gradient.data(), 0, kElements),
                               numbers_of(form.optimizer, usual_hyper(form.optimizer), step));
    }
    bool has_nan = false;
    for (size_t plane = 0; plane < tile.planes().size(); ++plane) {
      if (tile.planes()[plane].dtype != Dtype::fp32) continue;
      const bool is_moment = tile.planes()[plane].role != Role::weight && tile.planes()[plane].role != Role::master;
      for (uint64_t i = 0; i < kElements; ++i) {
        const float value = get(tile.plane(plane), Dtype::fp32, i);
        const uint32_t bits = std::bit_cast<uint32_t>(value);
        if (std::isnan(value)) {
          has_nan = true;
          ASSERT_EQ(bits, 0x7fc00000u) << describe(form);
        } else if (value != 0) {
          ASSERT_GE(std::abs(value), is_moment ? 0x1p-100f : 0x1p-119f) << describe(form);
        }
      }
    }
    EXPECT_TRUE(has_nan || form.master == MasterForm::split) << "the numbers were to hold NaNs: " << describe(form);
  }
}

TEST(Definition, SplitMasterIsAnExactInverseAndKeepsNan) {
  StateForm split{OptimizerKind::sgd, MasterForm::split, MomentForm::fp32, Dtype::bf16, Dtype::fp32};
  StateForm same = split;
  same.master = MasterForm::same;
  same.weight = Dtype::fp32;
  constexpr uint64_t kElements = 1 << 14;
  for (Isa isa : available_isas()) {
    Random random(9);
    Tile halves(split, kElements), whole(same, kElements);
    for (uint64_t i = 0; i < kElements; ++i) {
      const float value = random.number(Numbers::adversarial, 1.0f);
      halves.set_master(i, value);
      whole.set_master(i, value);
    }
    // Every second gradient is zero, so that ties and edges among the masters stay what they are.
    auto gradient = gradients(Dtype::fp32, kElements, random, Numbers::ordinary);
    for (uint64_t i = 0; i < kElements; i += 2) put(gradient.data(), Dtype::fp32, i, 0);
    for (uint64_t step = 1; step <= 3; ++step) {
      auto numbers = numbers_of(split.optimizer, Hyper{.lr = 1e-2, .momentum = 0.9}, step);
      TileUpdater(split, isa).update(halves.view(gradient.data(), 0, kElements), numbers);
      TileUpdater(same, isa).update(whole.view(gradient.data(), 0, kElements), numbers);
      for (uint64_t i = 0; i < kElements; ++i) {
        const uint32_t a = std::bit_cast<uint32_t>(halves.master(i)), b = std::bit_cast<uint32_t>(whole.master(i));
        ASSERT_EQ(a, b) << "element " << i;
        const float weight = get(halves.plane(0), Dtype::bf16, i);
        ASSERT_EQ(std::isnan(weight), std::isnan(whole.master(i))) << "element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace penstock::cpu_optim
