// SpillFiles holds the gradients that host memory cannot retain until the verdict: one file on each drive, with a place
// for every tile whose gradient may be spilled. The files are scratch: removed at the end, and after a kill by the next
// run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/store/tile_store.h"
#include "tiering/plan/plan.h"

namespace penstock::engine {

class SpillFiles {
 public:
  // `weights`: the drives' shares; empty means equal. Makes no file where the plan spills nothing.
  static Result<std::unique_ptr<SpillFiles>> make(aio::DriveFolders folders, const std::vector<double>& weights,
                                                  const Plan& plan, uint32_t rank);
  explicit SpillFiles(uint32_t rank);
  ~SpillFiles();

  Extent place_of(uint32_t tile) const { return places_[tile]; }

 private:
  const std::string name_;  // of the file in each folder
  std::vector<std::shared_ptr<aio::DriveFolder>> folders_;
  std::vector<std::unique_ptr<File>> files_;
  std::vector<Extent> places_;  // by tile; the lease's offset is the caller's
};

}  // namespace penstock::engine
