// Transfer: one move under way. It owns its lease and ends exactly once.
//
// The lease goes in with the request and comes back from wait(), or is handed to the function given to then(): so the
// bytes cannot be reached while they move, unless the caller has kept another lease of them (Lease::also()), as readers
// of a source do. A Transfer that is dropped goes on; its lease returns to its pool at the end.
//
// Transfers of one driver are made, waited for and ended by one thread.
#pragma once

#include <functional>
#include <memory>

#include "tiering/buffer.h"
#include "tiering/status.h"

namespace penstock {

class TransferDriver;

// Shared by the Transfer and the mechanism that carries it out. For implementers of IoEngine and Device.
class TransferState {
 public:
  TransferState(TransferDriver& driver, Lease lease) : driver_(driver), lease_(std::move(lease)) {}

  bool ended() const { return ended_; }
  const Lease& lease() const { return lease_; }
  // Ends the transfer: hands the lease, or the refusal, to whoever asked. On refusal the lease goes back to its pool.
  // REQUIRES: called once, on the driver's thread.
  void end(Status status);

 private:
  friend class Transfer;
  TransferDriver& driver_;
  Lease lease_;
  Status status_;
  bool ended_ = false;
  bool taken_ = false;
  std::function<void(Result<Lease>)> then_;
};

class TransferDriver {
 public:
  virtual ~TransferDriver() = default;
  // Makes progress until `state` has ended.
  virtual void drive_until_ended(const TransferState& state) = 0;
};

class Transfer {
 public:
  using Then = std::function<void(Result<Lease>)>;

  explicit Transfer(std::shared_ptr<TransferState> state) : state_(std::move(state)) {}
  Transfer(Transfer&&) = default;
  Transfer& operator=(Transfer&&) = default;

  bool ended() const { return state_->ended(); }

  // Blocks until the end; other transfers of the same driver progress, and may end, meanwhile.
  Result<Lease> wait() &&;

  // Calls `function` with the lease when the transfer ends: at once if it has, else from inside the driver's poll().
  void then(Then function) &&;

 private:
  std::shared_ptr<TransferState> state_;
};

}  // namespace penstock
