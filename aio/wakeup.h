// Wakeup joins a descriptor and a timer into one descriptor, so that whoever waits on it also wakes up for what is due.
#pragma once

#include <chrono>

namespace penstock::aio {

class Wakeup {
 public:
  explicit Wakeup(int fd);
  ~Wakeup();
  Wakeup(const Wakeup&) = delete;
  Wakeup& operator=(const Wakeup&) = delete;

  // Readable when the joined descriptor is, or the alarm has gone off.
  int fd() const { return epoll_fd_; }
  // Goes off once at `when`; replaces the alarm before.
  void alarm_at(std::chrono::steady_clock::time_point when);
  void silence();

 private:
  int epoll_fd_ = -1;
  int timer_fd_ = -1;
};

}  // namespace penstock::aio
