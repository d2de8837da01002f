// TcpCarrier: among ranks of several hosts. What a rank gives goes to every other over a connection of theirs, while
// what it takes comes; all ranks carry the same operations in the same order, so that bytes need no words beside them.
//
// A sum is made in rounds: a run of every rank's part goes to its owner, who adds it up in the order of ranks, and
// rounds it once. So it has the bits of every other carrier.
#pragma once

#include <vector>

#include "cpu_optim/gradient.h"
#include "runtime/engine/ranks/carrier.h"
#include "runtime/engine/ranks/connection.h"
#include "runtime/engine/ranks/ranks.h"
#include "runtime/engine/ranks/shared_memory.h"

namespace penstock::engine {

class TcpCarrier final : public Carrier {
 public:
  // `connections`: by rank. `memory` outlives it; of it, this rank's area alone is there.
  TcpCarrier(const SharedMemory& memory, const RanksOptions& options, std::vector<Connection> connections);

  std::span<std::byte> memory() const override { return memory_.area(rank_); }
  Tier tier() const override { return Tier::host; }
  Status gather(std::span<const Collective::Shard> shards) override;
  Status reduce(const Collective::Reduction& reduction) override;
  Status collect(const Collective::Collection& collection) override;

 private:
  // Between this rank and another: runs of memory that leave and that arrive, in order.
  struct Flow {
    std::vector<std::span<std::byte>> out = {}, in = {};
  };
  // By rank. Ends when all has left and arrived, or with the ranks.
  Status move(std::vector<Flow> flows) const;
  // What one connection takes or has now; whether it moved anything.
  Result<bool> move_some(uint32_t other, Flow& flow) const;
  Status ended_by(uint32_t other, int error) const;
  void add_up(const Collective::Reduction& reduction, uint64_t first, uint64_t count, uint64_t at_once);

  const SharedMemory& memory_;
  const uint32_t rank_;
  const std::chrono::milliseconds hangs_after_, silent_at_most_;
  const std::vector<Connection> connections_;
  const cpu_optim::GradientKernels kernels_;
  std::vector<std::byte> staging_;  // of the others' runs, by rank
};

}  // namespace penstock::engine
