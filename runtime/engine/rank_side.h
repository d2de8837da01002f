// RankSide is what an Engine that keeps one rank's shards asks of the other ranks. Without one, an engine is alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "aio/store/commit_barriers.h"
#include "tiering/status.h"

namespace penstock::engine {

class RankSide {
 public:
  virtual ~RankSide() = default;

  virtual uint32_t rank() const = 0;
  virtual uint32_t ranks() const = 0;

  // Of this rank's shard of a unit: the unit of the model that it is cut from, and where in it it begins. Stochastic
  // rounding draws for an element by these, so that the cut changes no bit.
  struct Origin {
    uint32_t unit = 0;
    uint64_t first_element = 0;
  };
  virtual Origin origin_of(uint32_t unit) const = 0;

  // Elements [first, first + count) of a unit's gradient over all ranks, in the workload's gradient dtype, and their
  // sums of squares by block. Asked for each tile once the unit's last pass is released. The caller's thread.
  virtual void take_gradient(uint32_t unit, uint64_t first, uint64_t count, std::byte* target,
                             std::span<double> squares) = 0;
  // Those of all ranks' gradients, from this rank's blocks by unit. The caller's thread.
  virtual Result<double> sum_of_squares(const std::vector<std::vector<double>>& blocks) = 0;

  // A commit's, see there. Their continuations run in poll(), which waits for a verdict `at_most` so long; `wake` is
  // called from another thread when there is one. Decision thread.
  virtual aio::CommitBarriers barriers(std::function<void()> wake) = 0;
  virtual void poll(std::chrono::milliseconds at_most) = 0;
  // Something has ended that a verb may wait for: the engine is not stuck. Decision thread.
  virtual void progressed() = 0;
};

}  // namespace penstock::engine
