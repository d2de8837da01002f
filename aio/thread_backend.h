// ThreadBackend moves pieces with pread and pwrite on a few threads. It is for kernels and containers that allow
// nothing else.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "aio/backend.h"
#include "aio/event_fd.h"

namespace penstock::aio {

class ThreadBackend final : public IoBackend {
 public:
  static Result<std::unique_ptr<IoBackend>> make(uint32_t threads = 16, uint32_t capacity = 256);
  ~ThreadBackend() override;

  uint32_t capacity() const override { return capacity_; }
  void submit(const Piece& piece) override;
  void start() override {}
  size_t reap(std::span<Completion> ended, std::chrono::nanoseconds timeout) override;
  void wake_after(uint32_t pieces) override;
  Result<int> completion_fd() override;
  std::string description() const override;

 private:
  explicit ThreadBackend(uint32_t capacity) : capacity_(capacity) {}
  void work();

  const uint32_t capacity_;
  std::mutex mutex_;
  std::condition_variable work_arrived_;
  std::condition_variable piece_ended_;
  std::deque<Piece> waiting_;     // GUARDED_BY(mutex_)
  std::deque<Completion> ended_;  // GUARDED_BY(mutex_)
  uint32_t wake_after_ = 1;       // GUARDED_BY(mutex_)
  EventFd event_fd_;              // GUARDED_BY(mutex_)
  bool stopping_ = false;         // GUARDED_BY(mutex_)
  std::vector<std::thread> threads_;
};

// Moves one piece on the calling thread. Returns what Completion::result holds.
int32_t move_now(const Piece& piece);

}  // namespace penstock::aio
