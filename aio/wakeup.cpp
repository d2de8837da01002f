#include "aio/wakeup.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tiering/check.h"

namespace penstock::aio {
namespace {

bool add(int epoll_fd, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

// steady_clock is CLOCK_MONOTONIC to both compilers' libraries.
Result<std::unique_ptr<Wakeup>> Wakeup::make(int fd) {
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd < 0) return errno_status("epoll for completions", errno);
  const int timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  if (timer_fd < 0) {
    const Status refused = errno_status("timer for completions", errno);
    close(epoll_fd);
    return refused;
  }
  auto wakeup = std::unique_ptr<Wakeup>(new Wakeup(epoll_fd, timer_fd));
  if (!add(epoll_fd, fd) || !add(epoll_fd, timer_fd)) return errno_status("epoll for completions", errno);
  return wakeup;
}

Status Wakeup::make_once(std::unique_ptr<Wakeup>& wakeup, IoBackend& backend) {
  if (wakeup) return Status();
  PENSTOCK_TRY_ASSIGN(fd, backend.completion_fd());
  PENSTOCK_TRY_ASSIGN(made, make(fd));
  wakeup = std::move(made);
  return Status();
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
