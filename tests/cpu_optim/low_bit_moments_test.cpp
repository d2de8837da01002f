// Moments of fewer bits: what rounding promises, and that a small model trains to the loss of fp32 moments.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cpu_optim/tile_world.h"
#include "tests/support/instrumented.h"
#include "tiering/arithmetic/byte_moments.h"
#include "tiering/arithmetic/stochastic.h"

namespace penstock::cpu_optim {
namespace {

TEST(StochasticRounding, IsRightOnAverageForEveryElement) {
  for (uint32_t element : {0u, 1u, 12345u, 0xffffffffu}) {
    for (float value : {1.0f + 0x1p-15f, -0.3f, 1e-20f, 3.3e7f}) {
      constexpr int kDraws = 20000;
      double sum = 0;
      for (int step = 0; step < kDraws; ++step) {
        const uint32_t random = arithmetic::random_bits(arithmetic::random_key(1, step, 0), element);
        sum += arithmetic::float_of_bf16(arithmetic::bf16_stochastic(value, static_cast<uint16_t>(random)));
      }
      // One bf16 step is at most 2^-7 of the value; the mean of n draws strays by half of that / sqrt(n), 5 sigma.
      EXPECT_NEAR(sum / kDraws, value, std::abs(value) * 0x1p-8 / std::sqrt(kDraws) * 5) << element;
    }
  }
}

TEST(StochasticRounding, DrawsForMomentumAndVarianceAreUnrelated) {
  double product = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const uint32_t random = arithmetic::random_bits(arithmetic::random_key(7, 3, 0), static_cast<uint32_t>(i));
    product += ((random & 0xffff) / 65536.0 - 0.5) * ((random >> 16) / 65536.0 - 0.5);
  }
  EXPECT_NEAR(product / kDraws * 12, 0, 5 / std::sqrt(kDraws));
}

float root_of_code(uint8_t code, float scale) { return arithmetic::root_of_code(code) * scale; }
float momentum_of_code(uint8_t code, float scale) { return arithmetic::momentum_of_code(code) * scale; }
uint8_t coded_root(float root, float scale, uint32_t random) {
  return arithmetic::code_of_root(arithmetic::rounded_root(root, random), scale);
}
uint8_t coded_momentum(float momentum, float scale, uint32_t random) {
  return arithmetic::code_of_momentum(arithmetic::rounded_momentum(momentum, random), scale);
}

TEST(ByteMoments, EveryCodeComesBackAsItself) {
  for (float scale : {0x1p-30f, 1.0f, 0x1p+100f}) {
    for (int code = 0; code < 256; ++code) {
      const uint8_t byte = static_cast<uint8_t>(code);
      EXPECT_EQ(coded_root(root_of_code(byte, scale), scale, 0), byte);
      const uint8_t momentum = byte == 0x80 ? 0 : byte;  // zero has one sign
      EXPECT_EQ(coded_momentum(momentum_of_code(byte, scale), scale, 0), momentum);
    }
  }
}

TEST(ByteMoments, ReachDownToTwoToTheMinusFifteenOfTheLargestAndNeverLoseARoot) {
  const float largest = 1.7f;
  const float scale = arithmetic::scale_of_half(arithmetic::root_scale_half(std::bit_cast<uint32_t>(largest) >> 16));
  Random random(1);
  for (int i = 0; i < 20000; ++i) {
    const float root = largest * std::exp2(-16.0f * static_cast<float>(i) / 20000);
    const uint32_t bits = static_cast<uint32_t>(random.below(1ull << 32));
    const float back = root_of_code(coded_root(root, scale, bits), scale);
    EXPECT_GT(back, 0) << root;
    if (root > largest * 0x1p-14f) {
      EXPECT_NEAR(back, root, root / 16);
    }
  }
}

// The largest that rounds up to the next power of two takes the scale along, so no code is too large for its byte.
TEST(ByteMoments, EveryRoundedNumberFitsItsScale) {
  for (float value : {1.99f, 1.9999999f, 2.0f}) {
    for (uint32_t random : {0u, 0xffffffffu}) {
      const uint32_t root = arithmetic::rounded_root(value, random);
      const float root_scale = arithmetic::scale_of_half(arithmetic::root_scale_half(root));
      EXPECT_NEAR(root_of_code(arithmetic::code_of_root(root, root_scale), root_scale), value, value / 16);
      const uint32_t momentum = arithmetic::rounded_momentum(-value, random) & arithmetic::kMagnitudeHalf;
      const float scale = arithmetic::scale_of_half(arithmetic::momentum_scale_half(momentum));
      EXPECT_NEAR(momentum_of_code(coded_momentum(-value, scale, random), scale), -value, value / 8);
    }
  }
}

TEST(ByteMoments, AreRightOnAverageForEveryElement) {
  constexpr int kDraws = 20000;
  for (uint32_t element : {0u, 1u, 63u, 64u, 12345u, 0xffffffffu}) {
    for (float value : {1.03f, 0.3f, 0.0007f}) {
      double roots = 0, momenta = 0;
      for (int step = 0; step < kDraws; ++step) {
        const uint32_t random = arithmetic::byte_random_bits(arithmetic::random_key(1, step, 0), element);
        roots += root_of_code(coded_root(value, 1.0f, random), 1.0f);
        momenta += momentum_of_code(coded_momentum(-value, 1.0f, random), 1.0f);
      }
      // A code step is at most 1/16 (1/8) of the value; the mean of n draws strays by half of that / sqrt(n), 5 sigma.
      EXPECT_NEAR(roots / kDraws, value, value / 32 / std::sqrt(kDraws) * 5) << element;
      EXPECT_NEAR(momenta / kDraws, -value, value / 16 / std::sqrt(kDraws) * 5) << element;
    }
  }
}

// A draw is shared by 64 neighbours: over steps no two of them may go together, nor an element's two numbers.
TEST(ByteMoments, DrawsOfNeighboursAndOfTheTwoMomentsAreUnrelatedOnAverage) {
  constexpr int kDraws = 400;
  constexpr uint32_t kElements = 256;
  double neighbours = 0, moments = 0;
  for (int step = 0; step < kDraws; ++step) {
    const uint32_t key = arithmetic::random_key(7, step, 0);
    double before = 0;
    for (uint32_t i = 0; i < kElements; ++i) {
      const uint32_t random = arithmetic::byte_random_bits(key, i);
      const double root = arithmetic::root_random(random) / 524288.0 - 0.5;
      moments += root * (arithmetic::momentum_random(random) / 1048576.0 - 0.5);
      if (i % 64 != 0) neighbours += root * before;
      before = root;
    }
  }
  // Turns are fixed: what 63 pairs of them have in common stays, 1/sqrt(63) of one's variance.
  EXPECT_NEAR(neighbours / (kDraws * kElements) * 12, 0, 3 / std::sqrt(63));
  EXPECT_NEAR(moments / (kDraws * kElements) * 12, 0, 3 / std::sqrt(64));
}

TEST(ByteMoments, ABlockOfNoneAboveTwoToTheMinus49IsZero) {
  const StateForm form{OptimizerKind::adamw, MasterForm::same, MomentForm::int8, Dtype::fp32, Dtype::fp32};
  for (auto [size, is_zero] : {std::pair(0x1p-50f, true), {0x1p-40f, false}}) {
    Tile tile(form, kMomentBlockElements);
    const std::vector<float> gradient(kMomentBlockElements, size);
    TileUpdater(form, Isa::scalar)
        .update(tile.view(reinterpret_cast<const std::byte*>(gradient.data()), 0, kMomentBlockElements),
                numbers_of(form.optimizer, {}, 1, 1.0f));
    for (size_t scale_plane : {3, 4}) EXPECT_EQ(get(tile.plane(scale_plane), Dtype::fp32, 0) == 0, is_zero) << size;
  }
}

TEST(ByteMoments, ABlockWithANanIsNanAndSoIsWhatItUpdates) {
  StateForm form{.moments = MomentForm::int8, .gradient = Dtype::fp32};
  Tile tile(form, 512);
  auto numbers = numbers_of(form.optimizer, Hyper{}, 1, 1.0f);
  std::vector<float> gradient(512, 1e-3f);
  gradient[300] = NAN;
  const auto* bytes = reinterpret_cast<const std::byte*>(gradient.data());
  TileUpdater(form).update(tile.view(bytes, 0, 512), numbers);
  gradient[300] = 1e-3f;
  TileUpdater(form).update(tile.view(bytes, 0, 512), numbers);
  EXPECT_TRUE(std::isfinite(tile.master(255)));
  EXPECT_TRUE(std::isnan(tile.master(256)) && std::isnan(tile.master(300)) && std::isnan(tile.master(511)));
}

// A two-layer network learns to tell apart points of the plane by a curve: 2 -> 64 tanh -> 1, 8,192 points in batches
// of 128, 1,500 steps of AdamW. Everything but the moments is the same. What is compared is the loss over all points,
// averaged over the last 100 steps' weights (one step's is noisy).
class SmallModel {
 public:
  explicit SmallModel(MomentForm moments) : form_{.moments = moments, .gradient = Dtype::fp32}, tile_(form_, kWeights) {
    Random random(11);
    for (uint64_t i = 0; i < kWeights; ++i) tile_.set_master(i, random.normal(i < 2 * kHidden ? 1.0f : 0.3f));
    for (int i = 0; i < kPoints; ++i) {
      const float x = random.normal(1), y = random.normal(1);
      points_.push_back({x, y, std::sin(2 * x) + 0.5f * y * y - 0.5f > 0 ? 1.0f : 0.0f});
    }
  }

  double trained_loss() {
    Random random(12);
    const Hyper hyper{.lr = 3e-3, .weight_decay = 0.01};
    TileUpdater updater(form_);
    double sum = 0;
    for (uint64_t step = 1; step <= kSteps; ++step) {
      std::vector<float> gradient(kWeights);
      const uint64_t first = random.below(kPoints - kBatch);
      pass(first, kBatch, &gradient);
      updater.update(tile_.view(reinterpret_cast<const std::byte*>(gradient.data()), 0, kWeights),
                     numbers_of(form_.optimizer, hyper, step, 1.0f));
      if (step > kSteps - 100 && step % 10 == 0) sum += pass(0, kPoints, nullptr) / 10;
    }
    return sum;
  }

 private:
  static constexpr int kHidden = 64, kPoints = 8192, kBatch = 128;
  static constexpr uint64_t kWeights = 4 * kHidden + 1, kSteps = 1500;
  struct Point {
    float x, y, label;
  };

  // Mean cross entropy, and its gradient.
  double pass(uint64_t first, uint64_t count, std::vector<float>* gradient) const {
    std::vector<float> w(kWeights);
    for (uint64_t i = 0; i < kWeights; ++i) w[i] = get(tile_.plane(0), Dtype::bf16, i);
    const float *wx = &w[0], *wy = &w[kHidden], *bias = &w[2 * kHidden], *out = &w[3 * kHidden];
    double loss = 0;
    for (uint64_t n = first; n < first + count; ++n) {
      float hidden[kHidden], logit = w[4 * kHidden];
      for (int h = 0; h < kHidden; ++h) {
        hidden[h] = std::tanh(wx[h] * points_[n].x + wy[h] * points_[n].y + bias[h]);
        logit += out[h] * hidden[h];
      }
      const float z = points_[n].label > 0 ? logit : -logit;
      loss += std::log1p(std::exp(-static_cast<double>(z))) / static_cast<double>(count);
      if (gradient == nullptr) continue;
      const float error = (1 / (1 + std::exp(-logit)) - points_[n].label) / static_cast<float>(count);
      for (int h = 0; h < kHidden; ++h) {
        const float back = error * out[h] * (1 - hidden[h] * hidden[h]);
        (*gradient)[h] += back * points_[n].x;
        (*gradient)[kHidden + h] += back * points_[n].y;
        (*gradient)[2 * kHidden + h] += back;
        (*gradient)[3 * kHidden + h] += error * hidden[h];
      }
      (*gradient)[4 * kHidden] += error;
    }
    return loss;
  }

  StateForm form_;
  Tile tile_;
  std::vector<Point> points_;
};

TEST(LowBitMoments, TrainASmallModelToTheLossOfFp32Moments) {
  const double fp32 = SmallModel(MomentForm::fp32).trained_loss();
  EXPECT_LT(fp32, 0.12) << "the model learns (an untrained one has 0.7)";
  // Margins stand for what runs of other seeds differ by anyway.
  EXPECT_NEAR(SmallModel(MomentForm::bf16).trained_loss(), fp32, 0.05 * fp32);
  EXPECT_NEAR(SmallModel(MomentForm::int8).trained_loss(), fp32, 0.10 * fp32);
}

// Blocks of elements whose gradients have one mean and deviation, but for the first of a block, whose are larger.
struct Neighbours {
  double step = 0;      // of all but the first, on average, in rates
  double variance = 0;  // that rests, as a part of what double would hold; with bytes only
};
Neighbours neighbours_of(float outlier, MomentForm moments) {
  constexpr uint64_t kElements = 8 * kMomentBlockElements, kSteps = 2000, kFrom = kSteps / 2;
  const StateForm form{OptimizerKind::adamw, MasterForm::same, moments, Dtype::fp32, Dtype::fp32};
  const Hyper hyper{.lr = 1e-6, .beta1 = 0.9, .beta2 = 0.999};
  Random random(13);
  Tile tile(form, kElements), before = tile;
  std::vector<double> exact(kElements);
  std::vector<float> gradient(kElements);
  for (uint64_t step = 1; step <= kSteps; ++step) {
    if (step == kFrom + 1) before = tile;
    for (uint64_t i = 0; i < kElements; ++i) {
      gradient[i] = (1e-3f + random.normal(1e-3f)) * (i % kMomentBlockElements == 0 ? outlier : 1);
      exact[i] = hyper.beta2 * exact[i] + (1 - hyper.beta2) * double{gradient[i]} * double{gradient[i]};
    }
    TileUpdater(form).update(tile.view(reinterpret_cast<const std::byte*>(gradient.data()), 0, kElements),
                             numbers_of(form.optimizer, hyper, step, 1.0f));
  }
  Neighbours result;
  for (uint64_t i = 0; i < kElements; ++i) {
    const uint64_t block = i / kMomentBlockElements;
    if (i % kMomentBlockElements == 0) continue;
    const double share = 1.0 / (kElements - kElements / kMomentBlockElements);
    result.step += (before.master(i) - tile.master(i)) / hyper.lr / (kSteps - kFrom) * share;
    if (moments != MomentForm::int8) continue;
    const double root = root_of_code(static_cast<uint8_t>(tile.plane(2)[i]), get(tile.plane(4), Dtype::fp32, block));
    result.variance += root * root / exact[i] * share;
  }
  return result;
}

TEST(LowBitMoments, OfBytesStrayAsTheirHeaderSays) {
  const double fp32 = neighbours_of(1, MomentForm::fp32).step;
  const auto part_at = [fp32](float outlier) { return neighbours_of(outlier, MomentForm::int8).step / fp32; };
  EXPECT_NEAR(neighbours_of(1, MomentForm::int8).variance, 1.02, 0.01);
  EXPECT_NEAR(part_at(1), 1, 0.02);
  if (test::kStride != 1) return;  // the rest is more of the same
  EXPECT_NEAR(part_at(0x1p13f), 1, 0.02);
  EXPECT_NEAR(part_at(0x1p14f), 0.73, 0.05);
  EXPECT_NEAR(part_at(0x1p15f), 0.1, 0.03);
  EXPECT_NEAR(part_at(0x1p17f), 0.03, 0.02);
  EXPECT_NEAR(part_at(0x1p19f), 0, 0.01);
}

}  // namespace
}  // namespace penstock::cpu_optim
