#include "tests/support/faulty_backend.h"

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <utility>

namespace penstock::aio {
namespace {

using std::chrono::nanoseconds;

bool can_strike(Fault fault, const Piece& piece) {
  switch (fault) {
    case Fault::none:
      return false;
    case Fault::short_move:
      return piece.operation != Operation::flush && piece.length_bytes >= 2 * kAlignmentBytes;
    case Fault::enospc:
    case Fault::torn_write:
    case Fault::lost_write:
      return piece.operation == Operation::write;
    case Fault::failed_flush:
      return piece.operation == Operation::flush;
    case Fault::eintr:
      return true;
    case Fault::eagain:
    case Fault::enomem:
    case Fault::eio:
      return piece.operation != Operation::flush;
  }
  return false;
}

int error_of(Fault fault) {
  switch (fault) {
    case Fault::eintr:
      return EINTR;
    case Fault::eagain:
      return EAGAIN;
    case Fault::enomem:
      return ENOMEM;
    case Fault::enospc:
      return ENOSPC;
    default:
      return EIO;
  }
}

}  // namespace

FaultyBackend::FaultyBackend(std::unique_ptr<IoBackend> inner, FaultOptions options)
    : WrappingBackend(std::move(inner)), options_(options), random_(options.seed), reported_(inner_->capacity()) {}

Fault FaultyBackend::draw(const Piece& piece) {
  for (size_t i = 1; i < kFaults; ++i) {
    const Fault fault = static_cast<Fault>(i);
    if (options_.chance[i] == 0 || !can_strike(fault, piece)) continue;
    if (std::uniform_real_distribution<>()(random_) < options_.chance[i]) return fault;
  }
  return Fault::none;
}

void FaultyBackend::submit(const Piece& piece) {
  const Fault fault = draw(piece);
  ++counts_[static_cast<size_t>(fault)];
  const auto blocks = static_cast<uint32_t>(piece.length_bytes / kAlignmentBytes);
  Piece moved = piece;
  reported_[piece.tag] = 0;
  switch (fault) {
    case Fault::none:
      break;
    case Fault::short_move:
      moved.length_bytes = static_cast<uint32_t>(kAlignmentBytes * (1 + random_() % (blocks - 1)));
      if (random_() % 2 == 0) reported_[piece.tag] = static_cast<int32_t>(moved.length_bytes - 1 - random_() % 4000);
      break;
    case Fault::torn_write:
      moved.length_bytes = static_cast<uint32_t>(kAlignmentBytes * (random_() % (blocks + 1)));
      reported_[piece.tag] = -EIO;
      if (moved.length_bytes == 0) return hold({piece.tag, -EIO});
      break;
    case Fault::lost_write:
      return hold({piece.tag, static_cast<int32_t>(piece.length_bytes)});
    default:
      return hold({piece.tag, -error_of(fault)});
  }
  ++with_inner_;
  inner_->submit(moved);
}

void FaultyBackend::hold(Completion completion) {
  const bool delayed = std::uniform_real_distribution<>()(random_) < options_.delay_chance;
  held_.push_back({completion, round_ + (delayed ? 1 + random_() % options_.delay_rounds_max : 0)});
  if (wakeup_) wakeup_->alarm_at({});
}

size_t FaultyBackend::reap(std::span<Completion> ended, nanoseconds timeout) {
  ++round_;
  // Rounds are the time here: nobody sleeps because of what is only held back.
  const size_t count = inner_->reap(ended, held_.empty() && with_inner_ > 0 ? timeout : nanoseconds(0));
  with_inner_ -= static_cast<uint32_t>(count);
  for (size_t i = 0; i < count; ++i) {
    const int32_t instead = reported_[ended[i].tag];
    hold({ended[i].tag, instead != 0 && ended[i].result >= 0 ? instead : ended[i].result});
  }
  size_t let = let_go(ended);
  while (let == 0 && !held_.empty() && timeout > nanoseconds(0)) {
    ++round_;
    let = let_go(ended);
  }
  if (wakeup_ && !held_.empty()) wakeup_->alarm_at({});
  if (wakeup_ && held_.empty()) wakeup_->silence();
  return let;
}

size_t FaultyBackend::let_go(std::span<Completion> ended) {
  size_t count = 0;
  for (size_t i = 0; i < held_.size() && count < ended.size();) {
    if (held_[i].round > round_) {
      ++i;
      continue;
    }
    ended[count++] = held_[i].completion;
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(i));
  }
  return count;
}

Result<int> FaultyBackend::completion_fd() {
  PENSTOCK_TRY(Wakeup::make_once(wakeup_, *inner_));
  if (!held_.empty()) wakeup_->alarm_at({});
  return wakeup_->fd();
}

uint64_t FaultyBackend::count_all() const { return std::accumulate(counts_.begin() + 1, counts_.end(), uint64_t{0}); }

}  // namespace penstock::aio
