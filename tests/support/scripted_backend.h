// ScriptedBackend asks a test what becomes of each request: it passes, it fails with an errno, or it is carried out and
// its end held back until the test lets it go.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "tests/support/wrapping_backend.h"

namespace penstock::aio {

class ScriptedBackend final : public WrappingBackend {
 public:
  static constexpr int kPass = 0, kHold = -1;  // any other fate is an errno
  using Script = std::function<int(const Piece&)>;

  // `let_go` outlives the backend.
  ScriptedBackend(std::unique_ptr<IoBackend> inner, Script script, const std::atomic<bool>* let_go = nullptr)
      : WrappingBackend(std::move(inner)), script_(std::move(script)), let_go_(let_go) {}

  void submit(const Piece& piece) override {
    const int fate = script_(piece);
    if (fate > 0) return ended_.push_back({piece.tag, -fate});
    if (fate == kHold) held_tags_.insert(piece.tag);
    ++with_inner_;
    inner_->submit(piece);
  }
  size_t reap(std::span<Completion> ended, std::chrono::nanoseconds timeout) override {
    if (let_go_ != nullptr && *let_go_) {
      ended_.insert(ended_.end(), held_.begin(), held_.end());
      held_.clear();
      held_tags_.clear();
    }
    const size_t count = std::min(ended.size(), ended_.size());
    std::copy_n(ended_.begin(), count, ended.begin());
    ended_.erase(ended_.begin(), ended_.begin() + static_cast<ptrdiff_t>(count));
    if (with_inner_ == 0) return count;
    std::span<Completion> rest = ended.subspan(count);
    size_t more = inner_->reap(rest, count > 0 ? std::chrono::nanoseconds(0) : timeout);
    with_inner_ -= more;
    auto is_held = [&](const Completion& each) { return held_tags_.contains(each.tag); };
    auto kept = std::stable_partition(rest.begin(), rest.begin() + static_cast<ptrdiff_t>(more),
                                      [&](const Completion& each) { return !is_held(each); });
    held_.insert(held_.end(), kept, rest.begin() + static_cast<ptrdiff_t>(more));
    return count + static_cast<size_t>(kept - rest.begin());
  }

 private:
  const Script script_;
  const std::atomic<bool>* const let_go_;
  size_t with_inner_ = 0;
  std::deque<Completion> ended_, held_;
  std::set<uint32_t> held_tags_;
};

}  // namespace penstock::aio
