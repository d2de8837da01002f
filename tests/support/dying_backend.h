// DyingBackend is the process that is killed: after so many requests no other reaches the drive. Those that had been
// handed over are still carried out, as the kernel does.
#pragma once

#include <algorithm>
#include <cerrno>
#include <deque>
#include <memory>

#include "tests/support/wrapping_backend.h"

namespace penstock::aio {

class DyingBackend final : public WrappingBackend {
 public:
  DyingBackend(std::unique_ptr<IoBackend> inner, uint64_t requests)
      : WrappingBackend(std::move(inner)), left_(requests) {}

  void submit(const Piece& piece) override {
    if (left_ == 0) {
      refused_.push_back({piece.tag, -EIO});
    } else {
      --left_;
      ++with_inner_;
      inner_->submit(piece);
    }
  }
  size_t reap(std::span<Completion> ended, std::chrono::nanoseconds timeout) override {
    size_t count = std::min(ended.size(), refused_.size());
    std::copy_n(refused_.begin(), count, ended.begin());
    refused_.erase(refused_.begin(), refused_.begin() + static_cast<ptrdiff_t>(count));
    if (with_inner_ == 0) return count;
    size_t more = inner_->reap(ended.subspan(count), count > 0 ? std::chrono::nanoseconds(0) : timeout);
    with_inner_ -= more;
    return count + more;
  }

 private:
  uint64_t left_;
  uint64_t with_inner_ = 0;
  std::deque<Completion> refused_;
};

}  // namespace penstock::aio
