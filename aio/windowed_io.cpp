#include "aio/windowed_io.h"

#include <utility>

#include "tiering/check.h"

namespace penstock::aio {

Result<Lease> WindowedIo::free_window() {
  // Windows that have come back are taken before those that were never used: their bytes may still be in a cache.
  engine_.poll();
  for (;;) {
    PENSTOCK_TRY(refusal_);
    if (std::optional<Lease> window = windows_.try_lease()) return *std::move(window);
    if (ended_.empty()) {
      wait_for_an_end();
    } else {
      hand_on_next();
    }
  }
}

void WindowedIo::read(std::span<const Extent> extents, Lease window, Ended ended) {
  await(engine_.read(extents, std::move(window), IoEngine::kWhenever), Kind::read, std::move(ended));
}

void WindowedIo::write(std::span<const Extent> extents, Lease window, Ended ended) {
  await(engine_.write(extents, std::move(window), IoEngine::kWhenever), Kind::write, std::move(ended));
}

Status WindowedIo::finish() {
  while (under_way_ > 0 || !ended_.empty()) {
    if (ended_.empty()) {
      wait_for_an_end();
    } else {
      hand_on_next();
    }
  }
  return refusal_;
}

void WindowedIo::await(Transfer transfer, Kind kind, Ended ended) {
  ++under_way_;
  std::move(transfer).then([this, kind, then = std::move(ended)](Result<Lease> window) mutable {
    --under_way_;
    if (then) {
      ended_.push_back({kind, std::move(then), std::move(window)});
    } else if (!window.ok()) {
      refuse(window.status());
    }
  });
}

void WindowedIo::hand_on_next() {
  EndedRequest next = std::move(ended_.front());
  ended_.pop_front();
  if (next.kind == Kind::read && !refusal_.ok()) next.window = refusal_;
  if (const Status status = next.then(std::move(next.window)); !status.ok()) refuse(status);
}

void WindowedIo::wait_for_an_end() {
  CHECK(under_way_ > 0, "no window is free, and no request is under way that would free one");
  const size_t before = under_way_;
  engine_.wait_until([&] { return under_way_ < before; });
}

void WindowedIo::refuse(const Status& why) {
  if (refusal_.ok()) refusal_ = why;
}

}  // namespace penstock::aio
