#include "tests/support/throttled_backend.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

namespace penstock::aio {

using std::chrono::nanoseconds;

ThrottledBackend::ThrottledBackend(std::unique_ptr<IoBackend> inner, ThrottleOptions options)
    : WrappingBackend(std::move(inner)), options_(options), due_of_tag_(inner_->capacity()) {}

void ThrottledBackend::submit(const Piece& piece) {
  const double rate = piece.operation == Operation::read ? options_.read_bytes_per_s : options_.write_bytes_per_s;
  const nanoseconds busy(static_cast<int64_t>(piece.length_bytes / rate * 1e9));
  Clock::time_point& busy_until = busy_until_[piece.file->drive()];
  busy_until = std::max(busy_until, Clock::now()) + busy;
  due_of_tag_[piece.tag] = busy_until + options_.latency;
  ++with_inner_;
  inner_->submit(piece);
}

size_t ThrottledBackend::reap(std::span<Completion> ended, nanoseconds timeout) {
  take_from_inner(nanoseconds(0));
  size_t count = let_go(ended);
  if (count == 0 && timeout > nanoseconds(0)) {
    if (!held_.empty()) timeout = std::min<nanoseconds>(timeout, next_due() - Clock::now());
    if (with_inner_ > 0) {
      take_from_inner(std::max(timeout, nanoseconds(0)));
    } else if (!held_.empty()) {
      std::this_thread::sleep_for(timeout);
    }
    count = let_go(ended);
  }
  if (wakeup_ && !held_.empty()) wakeup_->alarm_at(next_due());
  if (wakeup_ && held_.empty()) wakeup_->silence();
  return count;
}

void ThrottledBackend::take_from_inner(nanoseconds timeout) {
  std::array<Completion, 64> completions;
  const size_t count = inner_->reap(completions, timeout);
  with_inner_ -= static_cast<uint32_t>(count);
  for (size_t i = 0; i < count; ++i) held_.push_back({completions[i], due_of_tag_[completions[i].tag]});
}

size_t ThrottledBackend::let_go(std::span<Completion> ended) {
  const Clock::time_point now = Clock::now();
  std::stable_sort(held_.begin(), held_.end(), [](const Held& a, const Held& b) { return a.due < b.due; });
  size_t count = 0;
  while (count < held_.size() && count < ended.size() && held_[count].due <= now) {
    ended[count] = held_[count].completion;
    ++count;
  }
  held_.erase(held_.begin(), held_.begin() + static_cast<ptrdiff_t>(count));
  return count;
}

ThrottledBackend::Clock::time_point ThrottledBackend::next_due() const {
  return std::min_element(held_.begin(), held_.end(), [](const Held& a, const Held& b) { return a.due < b.due; })->due;
}

Result<int> ThrottledBackend::completion_fd() {
  PENSTOCK_TRY(Wakeup::make_once(wakeup_, *inner_));
  if (!held_.empty()) wakeup_->alarm_at(next_due());
  return wakeup_->fd();
}

}  // namespace penstock::aio
