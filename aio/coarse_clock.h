// CoarseClock measures spans of tens of milliseconds and more, and is cheap enough to be read for each piece. It lags
// by one kernel tick, a few milliseconds, and costs a fifth of steady_clock.
#pragma once

#include <time.h>

#include <chrono>

namespace penstock::aio {

struct CoarseClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<CoarseClock>;
  static constexpr bool is_steady = true;

  static time_point now() {
    timespec time = {};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return time_point(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
  }
};

}  // namespace penstock::aio
