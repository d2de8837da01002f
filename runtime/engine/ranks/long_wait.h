// LongWait is a carrier's wait for what other ranks do. It ends with them, and it ends when it has taken so long that
// something must be wrong: then nobody else would notice, since every process lives.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "tiering/status.h"

namespace penstock::engine {

class LongWait {
 public:
  // `ended` refuses when a rank has failed. `what` is said where `at_most` has passed: "the network has not answered".
  LongWait(std::function<Status()> ended, std::chrono::milliseconds at_most, std::string what)
      : ended_(std::move(ended)), at_most_(at_most), what_(std::move(what)) {}

  // Between two looks: pauses for a moment, which becomes longer, and says whether to look again.
  Status go_on() {
    const auto waited = Clock::now() - begin_;
    // A message of a few kilobytes takes some 20 us, and a thread some 50 us to wake up.
    if (waited < std::chrono::microseconds(100)) {
      std::this_thread::yield();
      return Status();
    }
    std::this_thread::sleep_for(waited < std::chrono::milliseconds(10) ? std::chrono::microseconds(50)
                                                                       : std::chrono::microseconds(500));
    PENSTOCK_TRY(ended_());
    if (waited <= at_most_) return Status();
    return Status(Code::kEnvironment, text(what_, " within ", static_cast<double>(at_most_.count()) / 1000, " s"),
                  "look at the network and the devices; where operations take so long, a longer "
                  "`penstock.hangs_after_s`");
  }

 private:
  using Clock = std::chrono::steady_clock;

  const std::function<Status()> ended_;
  const std::chrono::milliseconds at_most_;
  const std::string what_;
  const Clock::time_point begin_ = Clock::now();
};

}  // namespace penstock::engine
