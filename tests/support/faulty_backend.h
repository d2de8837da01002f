// FaultyBackend makes things go wrong, by chance but repeatably: the same seed and the same requests meet the same
// faults.
#pragma once

#include <array>
#include <memory>
#include <random>
#include <vector>

#include "aio/wakeup.h"
#include "tests/support/wrapping_backend.h"

namespace penstock::aio {

enum class Fault : uint8_t {
  none,
  short_move,    // a part moves, and that is reported, at times in the middle of a block
  eintr,         // nothing moves
  eagain,        //
  enomem,        //
  eio,           //
  enospc,        // writes only
  torn_write,    // some of the first blocks of 4 KiB are written, then EIO
  lost_write,    // reported as written, but it never was: the lie that only a checksum finds
  failed_flush,  // EIO
};
constexpr size_t kFaults = 10;

struct FaultOptions {
  uint64_t seed = 1;
  // The chance of each, per piece that it can strike; [size_t(Fault::eio)] = 0.01.
  std::array<double, kFaults> chance{};
  // The chance that a completion is held back, by up to so many calls of reap(). This also reorders.
  double delay_chance = 0;
  uint32_t delay_rounds_max = 16;

  FaultOptions& with(Fault fault, double probability) {
    chance[static_cast<size_t>(fault)] = probability;
    return *this;
  }
};

class FaultyBackend final : public WrappingBackend {
 public:
  FaultyBackend(std::unique_ptr<IoBackend> inner, FaultOptions options);

  void submit(const Piece& piece) override;
  size_t reap(std::span<Completion> ended, std::chrono::nanoseconds timeout) override;
  Result<int> completion_fd() override;
  std::string description() const override { return "faulty " + inner_->description(); }

  // How often each has struck.
  uint64_t count(Fault fault) const { return counts_[static_cast<size_t>(fault)]; }
  uint64_t count_all() const;

 private:
  struct Held {
    Completion completion;
    uint64_t round;  // in which it is let go
  };

  Fault draw(const Piece& piece);
  void hold(Completion completion);
  size_t let_go(std::span<Completion> ended);

  const FaultOptions options_;
  std::mt19937_64 random_;
  std::array<uint64_t, kFaults> counts_{};
  std::vector<int32_t> reported_;  // by tag: what is reported in place of what the inner one says; 0 for the truth
  std::vector<Held> held_;
  uint64_t round_ = 0;
  uint32_t with_inner_ = 0;
  std::unique_ptr<Wakeup> wakeup_;
};

}  // namespace penstock::aio
