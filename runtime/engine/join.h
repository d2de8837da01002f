// Join answers once when several requests have ended: with the first failure among them.
#pragma once

#include <functional>
#include <utility>

#include "tiering/status.h"

namespace penstock::engine {

class Join {
 public:
  // Whoever makes the requests counts as one, for a request may end at once: it calls end() when all have been made.
  explicit Join(std::function<void(Status)> then) : then_(std::move(then)) {}

  void begin() { ++left_; }
  void end(const Status& status = Status()) {
    if (status_.ok()) status_ = status;
    if (--left_ == 0) then_(status_);
  }

 private:
  size_t left_ = 1;
  Status status_;
  std::function<void(Status)> then_;
};

}  // namespace penstock::engine
