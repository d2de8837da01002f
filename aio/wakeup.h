// Wakeup joins a descriptor and a timer into one descriptor, so that a thread that waits on it also wakes up when
// something is due.
#pragma once

#include <chrono>
#include <memory>

#include "aio/backend.h"
#include "tiering/status.h"

namespace penstock::aio {

class Wakeup {
 public:
  static Result<std::unique_ptr<Wakeup>> make(int fd);
  // Creates `wakeup` over the backend's descriptor, unless it exists.
  static Status make_once(std::unique_ptr<Wakeup>& wakeup, IoBackend& backend);
  ~Wakeup();
  Wakeup(const Wakeup&) = delete;
  Wakeup& operator=(const Wakeup&) = delete;

  // Readable when the joined descriptor is, or the alarm has gone off.
  int fd() const { return epoll_fd_; }
  // The descriptor is readable from `when` until another alarm or silence(). Setting the same alarm again costs
  // nothing.
  void alarm_at(std::chrono::steady_clock::time_point when);
  void silence();

 private:
  Wakeup(int epoll_fd, int timer_fd) : epoll_fd_(epoll_fd), timer_fd_(timer_fd) {}

  const int epoll_fd_;
  const int timer_fd_;
  bool armed_ = false;
  std::chrono::steady_clock::time_point alarm_;
};

}  // namespace penstock::aio
