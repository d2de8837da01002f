// RankCommits are the barriers of a store's commit: they carry this rank's outcome to all, and bring the verdict back
// to the decision thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "aio/store/commit_barriers.h"
#include "runtime/engine/ranks/ranks.h"

namespace penstock::engine {

class RankCommits {
 public:
  explicit RankCommits(Ranks& ranks) : ranks_(ranks) {}

  aio::CommitBarriers barriers(std::function<void()> wake);
  // Goes on with the verdict that has come, or comes within `at_most`. Decision thread.
  void poll(std::chrono::milliseconds at_most);

 private:
  void pass(const Status& mine, aio::CommitBarriers::Continue go_on);

  Ranks& ranks_;
  std::function<void()> wake_;
  aio::CommitBarriers::Continue go_on_;  // the decision thread's
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::optional<Status> verdict_;  // GUARDED_BY(mutex_)
};

}  // namespace penstock::engine
