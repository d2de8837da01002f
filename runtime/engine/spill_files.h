// SpillFiles has a place on the drives for every gradient that host memory cannot retain until the verdict. They are
// scratch: removed at the end, and after a kill by the next run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/store/tile_store.h"
#include "tiering/plan/plan.h"

namespace penstock::engine {

class SpillFiles {
 public:
  // `weights`: the drives' shares; empty means equal. Takes no file where the plan spills nothing.
  static Result<std::unique_ptr<SpillFiles>> make(aio::DriveFolders folders, const std::vector<double>& weights,
                                                  const Plan& plan);
  ~SpillFiles();

  Extent place_of(uint32_t tile) const { return places_[tile]; }
  uint64_t size_bytes() const;

 private:
  std::vector<std::shared_ptr<aio::DriveFolder>> folders_;
  std::vector<std::unique_ptr<File>> files_;
  std::vector<Extent> places_;  // by tile; the lease's offset is the caller's
};

}  // namespace penstock::engine
