#include "aio/wakeup.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tiering/check.h"

namespace penstock::aio {
namespace {

void add(int epoll_fd, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  CHECK(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl: errno ", errno);
}

}  // namespace

// steady_clock is CLOCK_MONOTONIC to both compilers' libraries.
Wakeup::Wakeup(int fd)
    : epoll_fd_(epoll_create1(EPOLL_CLOEXEC)), timer_fd_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) {
  CHECK(epoll_fd_ >= 0 && timer_fd_ >= 0, "no descriptor left for a wakeup: errno ", errno);
  add(epoll_fd_, fd);
  add(epoll_fd_, timer_fd_);
}

Wakeup::~Wakeup() {
  close(timer_fd_);
  close(epoll_fd_);
}

void Wakeup::alarm_at(std::chrono::steady_clock::time_point when) {
  if (armed_ && alarm_ == when) return;
  armed_ = true;
  alarm_ = when;
  // A time of zero would silence the timer instead.
  const auto ns =
      std::max<int64_t>(1, std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch()).count());
  itimerspec alarm{};
  alarm.it_value = {ns / 1'000'000'000, ns % 1'000'000'000};
  CHECK(timerfd_settime(timer_fd_, TFD_TIMER_ABSTIME, &alarm, nullptr) == 0, "timerfd_settime: errno ", errno);
}

void Wakeup::silence() {
  if (!armed_) return;
  armed_ = false;
  itimerspec never{};
  CHECK(timerfd_settime(timer_fd_, 0, &never, nullptr) == 0, "timerfd_settime: errno ", errno);
}

}  // namespace penstock::aio
