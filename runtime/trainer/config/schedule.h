// Schedule: the learning rate of a step, and what else follows the step's number. A pure function of that number: a run
// that goes on needs nothing else.
//
// Steps count from 1. The schedules with DeepSpeed's names give step k what DeepSpeed's give its k-th update.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "tiering/status.h"

namespace penstock::trainer {

enum class ScheduleKind : uint8_t {
  constant,  // with `warmup_steps` before
  linear,    // down to end_ratio x lr at total_steps
  cosine,    // likewise, along half a cosine
  lr_range_test,
  one_cycle,
  warmup,
  warmup_decay,
  warmup_cosine,
};

enum class WarmupType : uint8_t { log, linear };

struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;

  // constant, linear, cosine. Step k of the warm-up has lr x k / warmup_steps.
  uint64_t warmup_steps = 0;
  uint64_t total_steps = 0;
  double end_ratio = 0;

  // LRRangeTest
  double range_min_lr = 1e-3;
  double range_step_size = 2000;
  double range_step_rate = 1;
  bool range_staircase = false;

  // OneCycle
  double cycle_min_lr = 0, cycle_max_lr = 0;
  double cycle_first_step_size = 2000;
  std::optional<double> cycle_second_step_size = {};  // empty: the first's
  uint64_t cycle_first_stair_count = 0;
  std::optional<uint64_t> cycle_second_stair_count = {};  // empty: the first's
  double decay_step_size = 0;
  double decay_lr_rate = 0;
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8, cycle_max_mom = 0.9;
  double decay_mom_rate = 0;

  // WarmupLR, WarmupDecayLR, WarmupCosineLR
  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr = {};  // empty: the optimizer's
  uint64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::log;
  uint64_t total_num_steps = 0;
  double warmup_min_ratio = 0;
  double cos_min_ratio = 1e-4;
};

// Refuses what has no meaning: no steps to decay over, sizes of 0.
Status validate(const Schedule& schedule);

struct Rate {
  double lr = 0;
  std::optional<std::pair<double, double>> betas;  // where the schedule sets them: one_cycle
};

// `lr` is the optimizer's. REQUIRES: step >= 1 and validate(schedule) is ok.
Rate rate_of(const Schedule& schedule, double lr, uint64_t step);

}  // namespace penstock::trainer
