// DecisionThread owns the one thread on which the executor, the store and the I/O engine live, and lets other threads
// ask it for things.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "runtime/engine/mailbox.h"
#include "tiering/status.h"

namespace penstock::engine {

// What one thread waits for and another provides, once.
template <typename T>
class Answer {
 public:
  void give(T value) {
    // Notified under the lock: whoever waits may destroy this as soon as it has the value.
    std::lock_guard lock(mutex_);
    value_ = std::move(value);
    given_.notify_one();
  }
  T wait() {
    std::unique_lock lock(mutex_);
    given_.wait(lock, [this] { return value_.has_value(); });
    return std::move(*value_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable given_;
  std::optional<T> value_;  // GUARDED_BY(mutex_)
};

class DecisionThread {
 public:
  // Runs `body` on the new thread; it returns when stopping() holds.
  static Result<std::unique_ptr<DecisionThread>> make(std::function<void(DecisionThread&)> body) {
    PENSTOCK_TRY_ASSIGN(mailbox, Mailbox::make());
    try {
      return std::unique_ptr<DecisionThread>(new DecisionThread(std::move(mailbox), std::move(body)));
    } catch (const std::system_error& error) {
      return thread_status("start decision thread: 0 of 1", error.code().value());
    }
  }
  // Asks the body to return and waits for it.
  ~DecisionThread() {
    mailbox_->post([this] { stopping_ = true; });
    thread_.join();
  }

  Mailbox& mailbox() { return *mailbox_; }
  // Decision thread only.
  bool stopping() const { return stopping_; }

  // Runs `function` on the decision thread and returns what it returned.
  template <typename Function>
  auto ask(Function function) -> decltype(function()) {
    Answer<decltype(function())> answer;
    mailbox_->post([&] { answer.give(function()); });
    return answer.wait();
  }

 private:
  DecisionThread(std::unique_ptr<Mailbox> mailbox, std::function<void(DecisionThread&)> body)
      : mailbox_(std::move(mailbox)), body_(std::move(body)), thread_([this] { body_(*this); }) {}

  const std::unique_ptr<Mailbox> mailbox_;
  bool stopping_ = false;
  std::function<void(DecisionThread&)> body_;
  std::thread thread_;
};

}  // namespace penstock::engine
