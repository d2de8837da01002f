// ActivationFiles holds the activations that neither the memory they are computed in nor host memory has room for, cut
// by the drives' shares. Each is written once and read once in a step, and nothing is flushed.
#pragma once

#include <memory>
#include <vector>

#include "aio/stripe_set.h"
#include "runtime/engine/scratch_files.h"
#include "tiering/plan/plan.h"

namespace penstock::engine {

class ActivationFiles {
 public:
  // `weights`: the drives' shares; empty means equal. Makes no file where the plan spills nothing.
  static Result<std::unique_ptr<ActivationFiles>> make(aio::DriveFolders folders, const std::vector<double>& weights,
                                                       const Plan& plan, uint32_t rank);

  // Of a place in Area::spilled_activations; counted in the lease from its first byte.
  std::vector<Extent> extents(uint64_t offset_bytes, uint64_t bytes) const;

 private:
  ActivationFiles(aio::StripeSet stripes, std::unique_ptr<ScratchFiles> files);

  const aio::StripeSet stripes_;
  const std::unique_ptr<ScratchFiles> files_;
};

}  // namespace penstock::engine
