#include "runtime/trainer/config/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace penstock::trainer {
namespace {

// DeepSpeed takes its first update before its schedule's first step: an update's number there is two less than ours,
// and the first is -1.
double update_number(uint64_t step) { return static_cast<double>(step) - 2; }

double share_done(const Schedule& schedule, uint64_t step) {
  if (step >= schedule.total_steps) return 1;
  return static_cast<double>(step - schedule.warmup_steps) /
         static_cast<double>(schedule.total_steps - schedule.warmup_steps);
}

// Ours: of lr.
double ratio_of(const Schedule& schedule, uint64_t step) {
  if (step < schedule.warmup_steps) return static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  if (schedule.kind == ScheduleKind::constant) return 1;
  const double done = share_done(schedule, step);
  const double left = schedule.kind == ScheduleKind::linear ? 1 - done : (1 + std::cos(std::numbers::pi * done)) / 2;
  return schedule.end_ratio + (1 - schedule.end_ratio) * left;
}

// How far up the triangle of a cycle an update is, 0 to 1.
double cycle_height(const Schedule& schedule, double update) {
  const double first = schedule.cycle_first_step_size, second = schedule.cycle_second_step_size.value_or(first);
  const double within = std::fmod(update + 1, first + second);
  const bool rising = within <= first;
  const uint64_t stairs = rising ? schedule.cycle_first_stair_count
                                 : schedule.cycle_second_stair_count.value_or(schedule.cycle_first_stair_count);
  const double steps = rising ? within : first + second - within, size = rising ? first : second;
  if (stairs == 0) return steps / size;
  return std::floor(steps * static_cast<double>(stairs) / size) / static_cast<double>(stairs);
}

Rate one_cycle(const Schedule& schedule, double update) {
  const double total =
      schedule.cycle_first_step_size + schedule.cycle_second_step_size.value_or(schedule.cycle_first_step_size);
  const double low = schedule.cycle_min_mom, high = schedule.cycle_max_mom;
  Rate rate;
  double momentum = 0;
  if (update < total) {
    const double height = cycle_height(schedule, update);
    rate.lr = schedule.cycle_min_lr + (schedule.cycle_max_lr - schedule.cycle_min_lr) * height;
    // The first update has the low one although its rate is the lowest: as DeepSpeed begins.
    momentum = update < 0 ? low : high - (high - low) * height;
  } else {
    const double after = schedule.decay_step_size == 0 ? 0 : (update - total + 1) / schedule.decay_step_size;
    rate.lr = schedule.cycle_min_lr / (1 + schedule.decay_lr_rate * after);
    momentum = high * (1 + schedule.decay_mom_rate * after);
  }
  if (schedule.cycle_momentum) rate.betas = {momentum, 0.99};
  return rate;
}

// 0 to 1 over the warm-up; empty behind it.
std::optional<double> warmed(const Schedule& schedule, double update) {
  const double steps = std::max<double>(2, static_cast<double>(schedule.warmup_num_steps));
  if (update >= steps) return std::nullopt;
  return schedule.warmup_type == WarmupType::log ? std::log(update + 1) / std::log(steps) : update / steps;
}

double warmup_lr(const Schedule& schedule, double lr, double update) {
  const double low = schedule.warmup_min_lr, high = schedule.warmup_max_lr.value_or(lr);
  if (update < 0) return low;
  double height = 1;
  if (const auto warm = warmed(schedule, update)) {
    height = *warm;
  } else if (schedule.kind == ScheduleKind::warmup_decay) {
    const double total = static_cast<double>(schedule.total_num_steps);
    const double steps = std::max<double>(2, static_cast<double>(schedule.warmup_num_steps));
    height = std::max(0.0, (total - update) / std::max(1.0, total - steps));
  }
  return low + (high - low) * height;
}

double warmup_cosine_lr(const Schedule& schedule, double lr, double update) {
  if (update < 0) return 0;
  if (const auto warm = warmed(schedule, update))
    return lr * (schedule.warmup_min_ratio + (1 - schedule.warmup_min_ratio) * *warm);
  const double steps = std::max<double>(2, static_cast<double>(schedule.warmup_num_steps));
  const double done =
      std::min(1.0, (update - steps + 1) / std::max(1.0, static_cast<double>(schedule.total_num_steps) - steps));
  const double wave = (1 + std::cos(std::numbers::pi * done)) / 2;
  return lr * std::max(0.0, schedule.cos_min_ratio + (1 - schedule.cos_min_ratio) * wave);
}

}  // namespace

Status validate(const Schedule& schedule) {
  auto refused = [](const std::string& why) { return Status(Code::kUsage, "schedule: " + why); };
  const bool ours_ends = schedule.kind == ScheduleKind::linear || schedule.kind == ScheduleKind::cosine;
  if (ours_ends && schedule.total_steps <= schedule.warmup_steps)
    return refused(text("total_steps is ", schedule.total_steps, ", more than the ", schedule.warmup_steps,
                        " steps of warm-up expected"));
  const bool theirs_ends = schedule.kind == ScheduleKind::warmup_decay || schedule.kind == ScheduleKind::warmup_cosine;
  if (theirs_ends && schedule.total_num_steps == 0) return refused("total_num_steps is missing");
  if (schedule.kind == ScheduleKind::lr_range_test && !(schedule.range_step_size > 0))
    return refused("lr_range_test_step_size: more than 0 expected");
  if (schedule.kind == ScheduleKind::one_cycle) {
    if (!(schedule.cycle_first_step_size > 0) || !(schedule.cycle_second_step_size.value_or(1) > 0))
      return refused("cycle_first_step_size and cycle_second_step_size: more than 0 expected");
    if (!(schedule.cycle_max_lr > 0)) return refused("cycle_max_lr is missing");
  }
  return Status();
}

Rate rate_of(const Schedule& schedule, double lr, uint64_t step) {
  CHECK(step >= 1, "steps count from 1");
  const double update = update_number(step);
  switch (schedule.kind) {
    case ScheduleKind::constant:
    case ScheduleKind::linear:
    case ScheduleKind::cosine:
      return {lr * ratio_of(schedule, step), std::nullopt};
    case ScheduleKind::lr_range_test: {
      const double sizes = (update + 1) / schedule.range_step_size;
      const double steps = schedule.range_staircase ? std::floor(sizes) : sizes;
      return {schedule.range_min_lr * (1 + schedule.range_step_rate * steps), std::nullopt};
    }
    case ScheduleKind::one_cycle:
      return one_cycle(schedule, update);
    case ScheduleKind::warmup:
    case ScheduleKind::warmup_decay:
      return {warmup_lr(schedule, lr, update), std::nullopt};
    case ScheduleKind::warmup_cosine:
      return {warmup_cosine_lr(schedule, lr, update), std::nullopt};
  }
  return {};
}

}  // namespace penstock::trainer
