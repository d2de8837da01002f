// RecentRate is the best rate of a drive over the recent past. It decays slowly, so that an idle moment does not hide
// it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aio/coarse_clock.h"

namespace penstock::aio {

class RecentRate {
 public:
  // So many more bytes have arrived by `now`.
  void add(uint64_t bytes, CoarseClock::time_point now = CoarseClock::now()) {
    bytes_ += bytes;
    const auto span = now - since_;
    if (span < kSpan) return;
    // It is unknown how long the first bytes were in flight.
    const bool known = since_ != CoarseClock::time_point();
    if (known) bytes_per_ns_ = std::max(kKept * bytes_per_ns_, static_cast<double>(bytes_) / span.count());
    since_ = now;
    bytes_ = 0;
  }

  // How long so many bytes take; zero while the rate is unknown.
  std::chrono::nanoseconds time_for(uint64_t bytes) const {
    if (bytes_per_ns_ <= 0) return {};
    return std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(bytes) / bytes_per_ns_));
  }

 private:
  static constexpr std::chrono::milliseconds kSpan{50};  // some ticks of the clock
  static constexpr double kKept = 0.9;

  uint64_t bytes_ = 0;
  CoarseClock::time_point since_;
  double bytes_per_ns_ = 0;
};

}  // namespace penstock::aio
