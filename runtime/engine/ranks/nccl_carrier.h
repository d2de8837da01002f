// NcclCarrier: among ranks that have a device each. What a rank takes comes from the memory of the other's device into
// that of its own, by NCCL's sends and receives.
//
// A sum is made in rounds: a run of every rank's part goes from all to its owner, into one half of a staging area,
// while the owner adds up what lies in the other half, by the device's kernels, in the order of ranks, and rounds it
// once. So it has the bits of every other carrier, which none of NCCL's own reductions promises.
#pragma once

#include <array>
#include <memory>

#include "gpu/backend.h"
#include "runtime/engine/ranks/carrier.h"
#include "runtime/engine/ranks/nccl_communicator.h"
#include "runtime/engine/ranks/ranks.h"

namespace penstock::engine {

class NcclCarrier final : public Carrier {
 public:
  // All ranks together, on the device that each one's options name. Uses their collective for commits; what one rank is
  // refused all hear. `ranks` outlives it.
  static Result<std::unique_ptr<Carrier>> make(const RanksOptions& options, Ranks& ranks);
  ~NcclCarrier() override;

  std::span<std::byte> memory() const override { return memory_; }
  Tier tier() const override { return Tier::device; }
  Status gather(std::span<const Collective::Shard> shards) override;
  Status reduce(const Collective::Reduction& reduction) override;
  Status collect(const Collective::Collection& collection) override;

 private:
  using Message = NcclCommunicator::Message;

  NcclCarrier(const RanksOptions& options, Ranks& ranks) : options_(options), ranks_(ranks) {}
  // This rank's part, by itself.
  Status take_device();
  Status connect(const nccl::UniqueId& id);

  LongWait wait_for(uint64_t bytes) const;
  // Aborts what a refusal leaves under way, and gives those who watch the processes the time to name the rank.
  Status ended_with(const Status& refused);
  Status put_gather(std::span<const Collective::Shard> shards);
  Status put_collection(const Collective::Collection& collection);
  Status put_reduction(const Collective::Reduction& reduction);
  Status put_round(const Collective::Reduction& reduction, uint64_t first, uint64_t at_once, std::byte* half);
  // Of this rank's part, what has come: added up and rounded.
  Status put_sums(const Collective::Reduction& reduction, uint64_t first, uint64_t at_once, std::byte* half);
  // Until both streams have ended.
  Status finish(uint64_t bytes);

  const RanksOptions options_;
  Ranks& ranks_;
  std::shared_ptr<const NcclLibrary> library_;
  std::unique_ptr<gpu::Backend> backend_;
  std::span<std::byte> memory_;
  std::array<std::span<std::byte>, 2> halves_;
  Stream messages_, sums_;
  std::unique_ptr<NcclCommunicator> communicator_;  // ends before the streams
};

}  // namespace penstock::engine
