// EventFd is a descriptor that is readable after signal() until drain(). It exists from the first call of fd() on;
// until then signalling costs nothing.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "tiering/check.h"

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

  // Made signalled: what has ended before may still wait to be looked at.
  int fd() {
    if (!made()) fd_ = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
    CHECK(made(), "no descriptor left for an eventfd: errno ", errno);
    return fd_;
  }

  void signal() const {
    if (made()) eventfd_write(fd_, 1);
  }

  // To be called before looking at what has ended, so that nothing that ends afterwards is missed.
  void drain() const {
    eventfd_t count;
    if (made()) eventfd_read(fd_, &count);
  }

 private:
  int fd_ = -1;
};

}  // namespace penstock::aio
