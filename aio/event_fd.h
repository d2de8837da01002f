// EventFd is a descriptor that is readable from signal() until drain(). It is created by make(). Before that, signal()
// and drain() do nothing.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "tiering/status.h"

namespace penstock::aio {

class EventFd {
 public:
  EventFd() = default;
  EventFd(const EventFd&) = delete;
  EventFd& operator=(const EventFd&) = delete;
  ~EventFd() {
    if (made()) close(fd_);
  }

  bool made() const { return fd_ >= 0; }

  // Creates it signalled: what it tells of may have come before. Only the first call may be refused.
  Result<int> make() {
    if (!made()) fd_ = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!made()) return errno_status("eventfd", errno);
    return fd_;
  }
  // REQUIRES: made().
  int fd() const { return fd_; }

  void signal() const {
    if (made()) eventfd_write(fd_, 1);
  }

  // Call it before looking for completions, so that none that comes later is missed.
  void drain() const {
    eventfd_t count;
    if (made()) eventfd_read(fd_, &count);
  }

 private:
  int fd_ = -1;
};

}  // namespace penstock::aio
