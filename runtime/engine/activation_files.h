// ActivationFiles holds the activations that neither the memory they are computed in nor host memory has room for: one
// scratch file on each drive, cut by the drives' shares. Each is written once and read once in a step, and nothing is
// flushed; the files are removed at the end, and after a kill by the next run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/store/tile_store.h"
#include "aio/stripe_set.h"
#include "tiering/plan/plan.h"

namespace penstock::engine {

class ActivationFiles {
 public:
  // `weights`: the drives' shares; empty means equal. Makes no file where the plan spills nothing.
  static Result<std::unique_ptr<ActivationFiles>> make(aio::DriveFolders folders, const std::vector<double>& weights,
                                                       const Plan& plan, uint32_t rank);
  ~ActivationFiles();

  // Of a place in Area::spilled_activations; counted in the lease from its first byte.
  std::vector<Extent> extents(uint64_t offset_bytes, uint64_t bytes) const;

 private:
  ActivationFiles(aio::DriveFolders folders, const std::vector<double>& shares, uint32_t rank);

  const std::string name_;  // of the file in each folder
  const std::vector<std::shared_ptr<aio::DriveFolder>> folders_;
  const aio::StripeSet stripes_;
  std::vector<std::unique_ptr<File>> files_;
};

}  // namespace penstock::engine
