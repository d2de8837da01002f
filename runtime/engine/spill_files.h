// SpillFiles holds the gradients that host memory cannot retain until the verdict: a place for every tile whose
// gradient may be spilled, each whole on one drive.
#pragma once

#include <memory>
#include <vector>

#include "runtime/engine/scratch_files.h"
#include "tiering/plan/plan.h"

namespace penstock::engine {

class SpillFiles {
 public:
  // `weights`: the drives' shares; empty means equal. Makes no file where the plan spills nothing.
  static Result<std::unique_ptr<SpillFiles>> make(aio::DriveFolders folders, const std::vector<double>& weights,
                                                  const Plan& plan, uint32_t rank);

  Extent place_of(TileId tile) const { return places_[tile]; }

 private:
  SpillFiles(std::unique_ptr<ScratchFiles> files, std::vector<Extent> places);

  const std::unique_ptr<ScratchFiles> files_;
  const std::vector<Extent> places_;  // by tile; the lease's offset is the caller's
};

}  // namespace penstock::engine
