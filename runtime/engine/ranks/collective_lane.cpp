#include "runtime/engine/ranks/collective_lane.h"

#include <chrono>
#include <system_error>

#include "tiering/check.h"

namespace penstock::engine {

Result<std::shared_ptr<CollectiveLane>> CollectiveLane::make() {
  std::shared_ptr<CollectiveLane> lane(new CollectiveLane);
  try {
    lane->thread_ = std::thread([made = lane.get()] { made->run(); });
  } catch (const std::system_error& error) {
    return thread_status("ranks: start a thread that gathers ahead: 0 of 1", error.code().value());
  }
  return lane;
}

CollectiveLane::Number CollectiveLane::push(Work work, std::optional<Status> provided) {
  std::lock_guard lock(mutex_);
  waiting_.push_back({std::move(work), std::move(provided)});
  changed_.notify_one();
  return ended_before_ + waiting_.size() - 1;
}

void CollectiveLane::provide(Number number, const Status& status) {
  std::lock_guard lock(mutex_);
  if (number < ended_before_) return;  // refused with one before it
  CHECK(number - ended_before_ < waiting_.size(), "collective ", number, " was not announced");
  waiting_[number - ended_before_].provided = status;
  changed_.notify_one();
}

bool CollectiveLane::has_ended(Number number) const {
  std::lock_guard lock(mutex_);
  return number < ended_before_;
}

Status CollectiveLane::wait_for(Number number) {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return number < ended_before_; });
  return status_;
}

Status CollectiveLane::wait_for_all() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return waiting_.empty(); });
  return status_;
}

double CollectiveLane::busy_s() const {
  std::lock_guard lock(mutex_);
  return busy_s_;
}

void CollectiveLane::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void CollectiveLane::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock,
                  [this] { return stopping_ || (!waiting_.empty() && (waiting_.front().provided || !status_.ok())); });
    if (stopping_) return;
    if (status_.ok()) status_ = *waiting_.front().provided;
    if (status_.ok()) {
      Work work = std::move(waiting_.front().work);
      lock.unlock();
      const auto began = std::chrono::steady_clock::now();
      const Status worked = work();
      work = nullptr;
      lock.lock();
      busy_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
      status_ = worked;
    }
    waiting_.pop_front();
    ++ended_before_;
    ended_.notify_all();
  }
}

}  // namespace penstock::engine
