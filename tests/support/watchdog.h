// Watchdog ends a test program that hangs, with a sentence, so that a stall is a failure and not a timeout.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "tiering/check.h"

namespace penstock {

class Watchdog {
 public:
  Watchdog(std::chrono::seconds patience, std::string what)
      : thread_([this, patience, what = std::move(what)] {
          std::unique_lock lock(mutex_);
          CHECK(over_.wait_for(lock, patience, [this] { return done_; }), what, " hangs");
        }) {}
  ~Watchdog() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
      over_.notify_one();
    }
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;  // GUARDED_BY(mutex_)
  std::thread thread_;
};

}  // namespace penstock
