// Connection is a descriptor that is closed with its owner; Deadline, how long those who meet wait for one another.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "tiering/status.h"

namespace penstock::engine {

class Connection {
 public:
  Connection() = default;
  explicit Connection(int descriptor) : descriptor_(descriptor) {}
  Connection(Connection&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Connection& operator=(Connection&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Connection() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // It is over as soon as `gives_up` says so, too.
  explicit Deadline(std::chrono::milliseconds after, std::function<bool()> gives_up = {})
      : at_(Clock::now() + after), after_(after), gives_up_(std::move(gives_up)) {}
  bool is_over() const { return (gives_up_ && gives_up_()) || Clock::now() >= at_; }
  int left_ms() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(at_ - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 3600 * 1000));
  }
  std::string words() const { return text(static_cast<double>(after_.count()) / 1000, " s"); }

 private:
  Clock::time_point at_;
  std::chrono::milliseconds after_;
  std::function<bool()> gives_up_;
};

inline bool readable_within(int descriptor, const Deadline& deadline) {
  constexpr int kLooksEveryMs = 100;
  pollfd source{descriptor, POLLIN, 0};
  while (true) {
    const int ready = ::poll(&source, 1, std::min(deadline.left_ms(), kLooksEveryMs));
    if (ready > 0) return true;
    if ((ready < 0 && errno != EINTR) || deadline.is_over()) return false;
  }
}

}  // namespace penstock::engine
