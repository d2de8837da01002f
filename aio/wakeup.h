// Wakeup joins a descriptor and a timer into one descriptor, so that whoever waits on it also wakes up for what is due.
#pragma once

#include <chrono>
#include <memory>

#include "aio/backend.h"
#include "tiering/status.h"

namespace penstock::aio {

class Wakeup {
 public:
  static Result<std::unique_ptr<Wakeup>> make(int fd);
  // Over the backend's descriptor, unless `wakeup` has been made already.
  static Status make_once(std::unique_ptr<Wakeup>& wakeup, IoBackend& backend);
  ~Wakeup();
  Wakeup(const Wakeup&) = delete;
  Wakeup& operator=(const Wakeup&) = delete;

  // Readable when the joined descriptor is, or the alarm has gone off.
  int fd() const { return epoll_fd_; }
  // From `when` on the descriptor is readable, until another alarm or silence(). Asking again for the same costs
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
