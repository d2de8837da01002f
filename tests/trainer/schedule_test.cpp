#include "runtime/trainer/config/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace penstock::trainer {
namespace {

constexpr double kRelative = 1e-12;  // both sides are computed in double

void expect_rates(const Schedule& schedule, std::vector<std::pair<uint64_t, double>> expected, double lr = 1e-3) {
  ASSERT_TRUE(validate(schedule).ok()) << validate(schedule).message();
  for (const auto& [step, rate] : expected)
    EXPECT_NEAR(rate_of(schedule, lr, step).lr, rate, kRelative) << "step " << step;
}

TEST(Schedule, ConstantLinearAndCosineWarmUpAndEndWhereTheySay) {
  Schedule schedule{.kind = ScheduleKind::constant, .warmup_steps = 4};
  expect_rates(schedule, {{1, 0.25e-3}, {2, 0.5e-3}, {4, 1e-3}, {5, 1e-3}, {1000, 1e-3}});
  schedule.kind = ScheduleKind::linear, schedule.total_steps = 104, schedule.end_ratio = 0.1;
  expect_rates(schedule, {{1, 0.25e-3}, {4, 1e-3}, {54, 0.55e-3}, {104, 0.1e-3}, {500, 0.1e-3}});
  schedule.kind = ScheduleKind::cosine;
  const double quarter = (1 + std::cos(std::numbers::pi / 4)) / 2;
  expect_rates(schedule, {{4, 1e-3}, {29, 1e-3 * (0.1 + 0.9 * quarter)}, {54, 0.55e-3}, {104, 0.1e-3}, {500, 0.1e-3}});
}

TEST(Schedule, LrRangeTestRisesStraightOrInStairs) {
  Schedule schedule{
      .kind = ScheduleKind::lr_range_test, .range_min_lr = 2e-4, .range_step_size = 10, .range_step_rate = 3};
  expect_rates(schedule, {{1, 2e-4}, {2, 2e-4 * 1.3}, {11, 2e-4 * 4}, {16, 2e-4 * 5.5}});
  schedule.range_staircase = true;
  expect_rates(schedule, {{1, 2e-4}, {10, 2e-4}, {11, 2e-4 * 4}, {20, 2e-4 * 4}, {21, 2e-4 * 7}});
}

TEST(Schedule, OneCycleIsATriangleAndThenDecays) {
  Schedule schedule{.kind = ScheduleKind::one_cycle,
                    .cycle_min_lr = 1e-4,
                    .cycle_max_lr = 5e-4,
                    .cycle_first_step_size = 10,
                    .cycle_second_step_size = 20,
                    .decay_step_size = 5,
                    .decay_lr_rate = 0.5,
                    .decay_mom_rate = 0.01};
  expect_rates(schedule, {{1, 1e-4}, {6, 3e-4}, {11, 5e-4}, {21, 3e-4}, {30, 1.2e-4}, {31, 1e-4}});
  // Update 31 is the first of the decay: 1 step, 6 steps behind the cycle.
  expect_rates(schedule, {{32, 1e-4 / 1.1}, {37, 1e-4 / 1.6}});
  EXPECT_EQ(rate_of(schedule, 0, 1).betas->first, 0.8);
  EXPECT_NEAR(rate_of(schedule, 0, 6).betas->first, 0.85, kRelative);
  EXPECT_NEAR(rate_of(schedule, 0, 11).betas->first, 0.8, kRelative);
  EXPECT_NEAR(rate_of(schedule, 0, 37).betas->first, 0.9 * (1 + 0.01 * 1.2), kRelative);
  EXPECT_EQ(rate_of(schedule, 0, 6).betas->second, 0.99);
  schedule.cycle_momentum = false;
  EXPECT_FALSE(rate_of(schedule, 0, 6).betas);
  schedule.decay_step_size = 0;
  expect_rates(schedule, {{37, 1e-4}});
  schedule.cycle_first_stair_count = 2, schedule.cycle_second_stair_count = 4;
  expect_rates(schedule, {{5, 1e-4}, {6, 3e-4}, {10, 3e-4}, {11, 5e-4}, {12, 4e-4}, {16, 4e-4}, {17, 3e-4}});
}

TEST(Schedule, WarmupRisesByLogarithmOrStraight) {
  Schedule schedule{
      .kind = ScheduleKind::warmup, .warmup_min_lr = 1e-5, .warmup_max_lr = 1e-3, .warmup_num_steps = 100};
  const double span = 1e-3 - 1e-5;
  expect_rates(schedule, {{1, 1e-5},
                          {2, 1e-5},
                          {3, 1e-5 + span * std::log(2) / std::log(100)},
                          {101, 1e-5 + span * std::log(100) / std::log(100)},
                          {102, 1e-3},
                          {5000, 1e-3}});
  schedule.warmup_type = WarmupType::linear;
  expect_rates(schedule, {{1, 1e-5}, {2, 1e-5}, {52, 1e-5 + span * 0.5}, {102, 1e-3}});
  schedule.warmup_max_lr.reset();
  expect_rates(schedule, {{102, 7e-4}}, 7e-4);
  schedule.kind = ScheduleKind::warmup_decay, schedule.warmup_max_lr = 1e-3, schedule.total_num_steps = 300;
  expect_rates(schedule, {{52, 1e-5 + span * 0.5}, {102, 1e-3}, {202, 1e-5 + span * 0.5}, {302, 1e-5}, {400, 1e-5}});
}

TEST(Schedule, AWarmUpLongerThanTheDecayEndsAtTheLowestRate) {
  Schedule schedule{.kind = ScheduleKind::warmup_decay,
                    .warmup_min_lr = 1e-5,
                    .warmup_max_lr = 1e-3,
                    .warmup_num_steps = 100,
                    .warmup_type = WarmupType::linear,
                    .total_num_steps = 60};
  expect_rates(schedule, {{52, 1e-5 + (1e-3 - 1e-5) * 0.5}, {102, 1e-5}, {162, 1e-5}, {400, 1e-5}});
}

TEST(Schedule, WarmupCosineFollowsTheOptimizersRate) {
  const Schedule schedule{.kind = ScheduleKind::warmup_cosine,
                          .warmup_num_steps = 10,
                          .warmup_type = WarmupType::linear,
                          .total_num_steps = 110,
                          .warmup_min_ratio = 0.2,
                          .cos_min_ratio = 0.01};
  const double first = (1 + std::cos(std::numbers::pi * 0.01)) / 2;
  expect_rates(schedule, {{1, 0},
                          {2, 0.2e-3},
                          {7, 0.6e-3},
                          {12, 1e-3 * (0.01 + 0.99 * first)},
                          {61, 1e-3 * (0.01 + 0.99 * 0.5)},
                          {111, 1e-5},
                          {1000, 1e-5}});
}

// As in deepspeed/runtime/lr_schedules.py, but for the highest rate of WarmupLR and WarmupDecayLR: the optimizer's own.
TEST(Schedule, WhatIsLeftOutIsAsDeepSpeedHasIt) {
  expect_rates({.kind = ScheduleKind::lr_range_test}, {{1, 1e-3}, {1001, 1.5e-3}, {2001, 2e-3}});
  const Schedule cycle{.kind = ScheduleKind::one_cycle, .cycle_min_lr = 1e-4, .cycle_max_lr = 5e-4};
  expect_rates(cycle, {{1, 1e-4}, {1001, 3e-4}, {2001, 5e-4}, {3001, 3e-4}, {4001, 1e-4}, {9999, 1e-4}});
  for (const auto& [step, momentum] : {std::pair{1, 0.8}, {1001, 0.85}, {2001, 0.8}, {9999, 0.9}}) {
    EXPECT_NEAR(rate_of(cycle, 0, static_cast<uint64_t>(step)).betas->first, momentum, kRelative) << "step " << step;
  }
  expect_rates({.kind = ScheduleKind::warmup}, {{1, 0}, {2, 0}, {11, 1e-3 / 3}, {101, 2e-3 / 3}, {1002, 1e-3}});
  expect_rates({.kind = ScheduleKind::warmup_decay, .total_num_steps = 2000},
               {{1, 0}, {2, 0}, {11, 1e-3 / 3}, {1502, 0.5e-3}, {2002, 0}});
  expect_rates({.kind = ScheduleKind::warmup_cosine, .total_num_steps = 2000},
               {{1, 0}, {2, 0}, {11, 1e-3 / 3}, {101, 2e-3 / 3}, {2002, 1e-7}});
}

TEST(Schedule, RefusesWhatHasNoEndOrNoSize) {
  EXPECT_FALSE(validate({.kind = ScheduleKind::cosine}).ok());
  EXPECT_FALSE(validate({.kind = ScheduleKind::linear, .warmup_steps = 10, .total_steps = 10}).ok());
  EXPECT_FALSE(validate({.kind = ScheduleKind::warmup_cosine}).ok());
  EXPECT_FALSE(validate({.kind = ScheduleKind::warmup_decay}).ok());
  EXPECT_FALSE(validate({.kind = ScheduleKind::one_cycle}).ok());
  EXPECT_FALSE(validate({.kind = ScheduleKind::lr_range_test, .range_step_size = 0}).ok());
  EXPECT_TRUE(validate({}).ok());
}

}  // namespace
}  // namespace penstock::trainer
