#include "runtime/engine/ranks/rank_commits.h"

#include <utility>

namespace penstock::engine {

aio::CommitBarriers RankCommits::barriers(std::function<void()> wake) {
  wake_ = std::move(wake);
  auto pass = [this](const Status& mine, aio::CommitBarriers::Continue go_on) { this->pass(mine, std::move(go_on)); };
  return {.data_flushed = pass, .root_flushed = pass};
}

void RankCommits::pass(const Status& mine, aio::CommitBarriers::Continue go_on) {
  go_on_ = std::move(go_on);
  ranks_.commits().barrier(mine, [this](const Status& verdict) {
    std::lock_guard lock(mutex_);  // all of this may be gone as soon as it is released
    verdict_ = verdict;
    arrived_.notify_one();
    wake_();
  });
}

void RankCommits::poll(std::chrono::milliseconds at_most) {
  Status verdict;
  {
    std::unique_lock lock(mutex_);
    if (!verdict_) arrived_.wait_for(lock, at_most, [this] { return verdict_.has_value(); });
    if (!verdict_) return;
    verdict = *std::exchange(verdict_, std::nullopt);
  }
  // The other barrier may be reached inside.
  std::exchange(go_on_, nullptr)(std::move(verdict));
}

}  // namespace penstock::engine
