// EventFd is a descriptor that is readable after signal() until drain(). It exists from make() on; until then
// signalling costs nothing.
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

  // Made signalled: what has ended before may still wait to be looked at. Refused only at the first call.
  Result<int> make() {
    if (!made()) fd_ = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!made()) return errno_status("eventfd for completions", errno);
    return fd_;
  }
  // REQUIRES: made().
  int fd() const { return fd_; }

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
