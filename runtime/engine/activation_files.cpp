#include "runtime/engine/activation_files.h"

#include <algorithm>
#include <utility>

namespace penstock::engine {

ActivationFiles::ActivationFiles(aio::StripeSet stripes, std::unique_ptr<ScratchFiles> files)
    : stripes_(std::move(stripes)), files_(std::move(files)) {}

Result<std::unique_ptr<ActivationFiles>> ActivationFiles::make(aio::DriveFolders folders,
                                                               const std::vector<double>& weights, const Plan& plan,
                                                               uint32_t rank) {
  const aio::StripeSet stripes(weights.empty() ? std::vector<double>(folders.size(), 1.0) : weights);
  uint64_t bytes = 0;
  for (const Move& move : plan.moves) {
    if (move.area == Area::spilled_activations) bytes = std::max(bytes, move.place_offset_bytes + move.place_bytes);
  }
  std::vector<uint64_t> by_drive;
  for (size_t drive = 0; drive < folders.size(); ++drive) by_drive.push_back(stripes.file_bytes(drive, bytes));
  PENSTOCK_TRY_ASSIGN(files, ScratchFiles::make(folders, rank, "activations", by_drive));
  return std::unique_ptr<ActivationFiles>(new ActivationFiles(stripes, std::move(files)));
}

std::vector<Extent> ActivationFiles::extents(uint64_t offset_bytes, uint64_t bytes) const {
  std::vector<Extent> found;
  stripes_.map(files_->files(), offset_bytes, bytes, 0, found);
  return found;
}

}  // namespace penstock::engine
