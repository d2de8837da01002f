// ThrottledBackend makes a fast drive a slow one, in real time: so many bytes a second and so long a latency per drive.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "aio/wakeup.h"
#include "tests/support/wrapping_backend.h"

namespace penstock::aio {

struct ThrottleOptions {
  double read_bytes_per_s = 1e9;
  double write_bytes_per_s = 1e9;
  std::chrono::nanoseconds latency{0};
};

class ThrottledBackend final : public WrappingBackend {
 public:
  ThrottledBackend(std::unique_ptr<IoBackend> inner, ThrottleOptions options);

  void submit(const Piece& piece) override;
  size_t reap(std::span<Completion> ended, std::chrono::nanoseconds timeout) override;
  Result<int> completion_fd() override;
  std::string description() const override { return "throttled " + inner_->description(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Held {
    Completion completion;
    Clock::time_point due;
  };

  void take_from_inner(std::chrono::nanoseconds timeout);
  size_t let_go(std::span<Completion> ended);
  Clock::time_point next_due() const;

  const ThrottleOptions options_;
  std::map<uint32_t, Clock::time_point> busy_until_;  // by drive
  std::vector<Clock::time_point> due_of_tag_;
  std::vector<Held> held_;
  uint32_t with_inner_ = 0;
  std::unique_ptr<Wakeup> wakeup_;
};

}  // namespace penstock::aio
