#include "runtime/trainer/loss_scaler.h"

#include <gtest/gtest.h>

#include <random>

namespace penstock::trainer {
namespace {

// What DeepSpeed's DynamicLossScaler does, in its own counting: iterations from 0, an overflow before the first.
struct Theirs {
  double scale;
  int64_t window, hysteresis_max, hysteresis, iteration = 0, last_overflow = -1;
  bool consecutive;
  double least;

  bool step(bool overflow) {
    bool raised = false;
    if (overflow) {
      if (hysteresis_max == 1 || hysteresis == 1) {
        raised = scale == least;
        scale = std::max(scale / 2, least);
      } else {
        --hysteresis;
      }
      last_overflow = iteration;
    } else {
      if (consecutive) hysteresis = hysteresis_max;
      const int64_t stable = iteration - last_overflow - 1;
      if (stable > 0 && stable % window == 0) {
        if (!consecutive) hysteresis = hysteresis_max;
        scale *= 2;
      }
    }
    ++iteration;
    return !raised;
  }
};

TEST(LossScaler, FollowsDeepSpeedStepForStep) {
  uint64_t raised = 0, grown = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    LossScaling rules{.initial_scale_power = static_cast<uint32_t>(random() % 6),
                      .window = 1 + random() % 7,
                      .hysteresis = static_cast<uint32_t>(1 + random() % 3),
                      .consecutive_hysteresis = random() % 2 == 0,
                      .least = 1};
    LossScaler ours(rules, Dtype::fp16);
    Theirs theirs{.scale = ours.scale(),
                  .window = static_cast<int64_t>(rules.window),
                  .hysteresis_max = rules.hysteresis,
                  .hysteresis = rules.hysteresis,
                  .consecutive = rules.consecutive_hysteresis,
                  .least = rules.least};
    for (uint64_t step = 1; step <= 60; ++step) {
      const bool overflow = random() % 4 == 0;
      const double before = theirs.scale;
      const bool goes_on = theirs.step(overflow);
      EXPECT_EQ(ours.learn(step, overflow).ok(), goes_on) << "seed " << seed << ", step " << step;
      if (!goes_on) {
        ++raised;
        break;
      }
      grown += theirs.scale > before;
      ASSERT_EQ(ours.scale(), theirs.scale) << "seed " << seed << ", step " << step;
      // Whoever goes on from a root has the state alone.
      LossScaler restored(rules, Dtype::fp16);
      restored.restore(ours.state());
      EXPECT_EQ(restored.scale(), ours.scale());
    }
  }
  EXPECT_GT(raised, 10u);
  EXPECT_GT(grown, 100u);
}

TEST(LossScaler, IsOneWithoutFp16AndStaysWhereItIsFixed) {
  LossScaler none({}, Dtype::bf16);
  EXPECT_TRUE(none.learn(1, true).ok());
  EXPECT_EQ(none.scale(), 1);
  LossScaler fixed({.scale = 128}, Dtype::fp16);
  for (uint64_t step = 1; step < 2000; ++step) EXPECT_TRUE(fixed.learn(step, step % 3 == 0).ok());
  EXPECT_EQ(fixed.scale(), 128);
  EXPECT_EQ(LossScaler({}, Dtype::fp16).scale(), 65536);
}

TEST(LossScaler, HalvesToTheLeastThatIsAllowedWhereThatIsNoPowerOfTwo) {
  LossScaler scaler({.initial_scale_power = 3, .hysteresis = 1, .least = 3}, Dtype::fp16);
  for (const double expected : {4, 3}) {
    EXPECT_TRUE(scaler.learn(1, true).ok());
    EXPECT_EQ(scaler.scale(), expected);
  }
  EXPECT_EQ(scaler.learn(2, true).code(), Code::kComparison);
}

}  // namespace
}  // namespace penstock::trainer
