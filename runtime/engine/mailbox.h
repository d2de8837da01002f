// Mailbox carries work to the decision thread: any thread posts, that one thread runs what was posted. Its descriptor
// is readable while something waits, so that the thread can wait on drives, copies and messages at once.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "aio/event_fd.h"
#include "tiering/status.h"

namespace penstock::engine {

// From any thread: has a function run on the thread that asked for what the caller has done.
using Post = std::function<void(std::function<void()>)>;

class Mailbox {
 public:
  using Message = std::function<void()>;

  static Result<std::unique_ptr<Mailbox>> make();

  void post(Message message);
  Post poster() {
    return [this](Message message) { post(std::move(message)); };
  }
  // Runs everything that was posted so far, in order; how many there were. Decision thread only.
  size_t run_all();
  int descriptor() const { return wakes_.fd(); }

 private:
  Mailbox() = default;

  aio::EventFd wakes_;
  std::mutex mutex_;
  std::vector<Message> waiting_;  // GUARDED_BY(mutex_)
  std::vector<Message> running_;  // kept for its memory
};

}  // namespace penstock::engine
