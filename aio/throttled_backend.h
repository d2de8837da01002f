// ThrottledBackend makes a fast drive a slow one, in real time: so many bytes a second and so long a latency per drive.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "aio/backend.h"
#include "aio/wakeup.h"

namespace penstock::aio {

struct ThrottleOptions {
  double read_bytes_per_s = 1e9;
  double write_bytes_per_s = 1e9;
  std::chrono::nanoseconds latency{0};
};

class ThrottledBackend final : public IoBackend {
 public:
  ThrottledBackend(std::unique_ptr<IoBackend> inner, ThrottleOptions options);

  uint32_t capacity() const override { return inner_->capacity(); }
  void submit(const Piece& piece) override;
  void start() override { inner_->start(); }
  size_t reap(std::span<Completion> ended, std::chrono::nanoseconds timeout) override;
  int completion_fd() override;
  uint64_t register_memory(std::span<std::byte> memory) override { return inner_->register_memory(memory); }
  void register_file(const File& file) override { inner_->register_file(file); }
  void unregister_file(const File& file) override { inner_->unregister_file(file); }
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

  std::unique_ptr<IoBackend> inner_;
  const ThrottleOptions options_;
  std::map<uint32_t, Clock::time_point> busy_until_;  // by drive
  std::vector<Clock::time_point> due_of_tag_;
  std::vector<Held> held_;
  uint32_t with_inner_ = 0;
  std::unique_ptr<Wakeup> wakeup_;
};

}  // namespace penstock::aio
