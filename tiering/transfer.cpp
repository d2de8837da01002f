#include "tiering/transfer.h"

#include <utility>

namespace penstock {
namespace {

Result<Lease> outcome(const Status& status, Lease lease) {
  if (!status.ok()) return status;
  return Result<Lease>(std::move(lease));
}

}  // namespace

void TransferState::end(Status status) {
  CHECK(!ended_, "a transfer ends once");
  ended_ = true;
  status_ = std::move(status);
  if (!status_.ok()) lease_ = Lease();
  if (then_) std::exchange(then_, nullptr)(outcome(status_, std::move(lease_)));
}

Result<Lease> Transfer::wait() && {
  CHECK(!std::exchange(state_->taken_, true), "the end of a transfer is taken once");
  if (!state_->ended()) state_->driver_.drive_until_ended(*state_);
  CHECK(state_->ended());
  return outcome(state_->status_, std::move(state_->lease_));
}

void Transfer::then(Then function) && {
  CHECK(!std::exchange(state_->taken_, true), "the end of a transfer is taken once");
  if (state_->ended()) {
    function(outcome(state_->status_, std::move(state_->lease_)));
  } else {
    state_->then_ = std::move(function);
  }
}

}  // namespace penstock
