// SharedMemoryCarrier: among processes of one host. What a rank takes it copies once, from where it lies in the memory
// of the other; a sum is made in one pass over the values of all ranks, where they lie.
#pragma once

#include "cpu_optim/gradient.h"
#include "runtime/engine/ranks/carrier.h"
#include "runtime/engine/ranks/shared_memory.h"

namespace penstock::engine {

class SharedMemoryCarrier final : public Carrier {
 public:
  // `memory` outlives it.
  SharedMemoryCarrier(const SharedMemory& memory, uint32_t rank) : memory_(memory), rank_(rank) {}

  std::span<std::byte> memory() const override { return memory_.area(rank_); }
  Tier tier() const override { return Tier::host; }
  Status gather(std::span<const Collective::Shard> shards) override;
  Status reduce(const Collective::Reduction& reduction) override;
  Status collect(const Collective::Collection& collection) override;

 private:
  const SharedMemory& memory_;
  const uint32_t rank_;
  const cpu_optim::GradientKernels kernels_;
};

}  // namespace penstock::engine
