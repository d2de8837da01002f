// DrivesMeter books what the drives move while they have enough to do for long enough. A request that is alone waits
// for its latency, and after a pause drives are faster for a moment than they can go on: both say little of a rate.
#pragma once

#include <chrono>
#include <utility>

#include "tiering/plan/rate_watch.h"

namespace penstock::engine {

class DrivesMeter {
 public:
  // `enough_bytes`: in flight, reads and writes together, for at least `enough_s` without a break. Shorter than a
  // twentieth of that, it is none: between the end of one request and the beginning of the next.
  DrivesMeter(uint64_t enough_bytes, double enough_s)
      : enough_bytes_(enough_bytes), enough_s_(enough_s), at_(Clock::now()) {}

  void begin(uint64_t bytes) {
    pass();
    in_flight_bytes_ += bytes;
  }
  // `moved`: whether the drives were asked at all.
  void end(bool reads, uint64_t bytes, bool moved) {
    pass();
    if (moved && (has_enough() || run_.seconds > 0)) {
      (reads ? run_.read_bytes : run_.written_bytes) += static_cast<double>(bytes);
    }
    in_flight_bytes_ -= bytes;
  }
  DrivesUnderLoad load() const { return run_.seconds >= enough_s_ ? load_ + run_ : load_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool has_enough() const { return in_flight_bytes_ >= enough_bytes_; }
  void pass() {
    const Clock::time_point now = Clock::now();
    const double passed_s = std::chrono::duration<double>(now - std::exchange(at_, now)).count();
    pause_s_ = has_enough() ? 0 : pause_s_ + passed_s;
    if (pause_s_ > enough_s_ / 20) {
      load_ = load();
      run_ = {};
    } else if (has_enough() || run_.seconds > 0) {
      run_.seconds += passed_s;
    }
  }

  const uint64_t enough_bytes_;
  const double enough_s_;
  uint64_t in_flight_bytes_ = 0;
  Clock::time_point at_;
  double pause_s_ = 0;          // since enough was in flight
  DrivesUnderLoad load_, run_;  // of runs that have ended, and of the one that has not
};

}  // namespace penstock::engine
