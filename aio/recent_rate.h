// RecentRate: how fast a drive has been of late, at its best: what an idle moment hides is not forgotten at once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aio/coarse_clock.h"

namespace penstock::aio {

class RecentRate {
 public:
  // Some bytes have arrived by `now`.
  void add(uint64_t bytes, CoarseClock::time_point now = CoarseClock::now()) {
    bytes_ += bytes;
    const auto span = now - since_;
    if (span < kSpan) return;
    // The first ones have been under way since nobody knows when.
    const bool known = since_ != CoarseClock::time_point();
    if (known) bytes_per_ns_ = std::max(kKept * bytes_per_ns_, static_cast<double>(bytes_) / span.count());
    since_ = now;
    bytes_ = 0;
  }

  // How long so many bytes take; zero as long as that is not known.
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
