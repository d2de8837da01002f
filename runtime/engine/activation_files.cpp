#include "runtime/engine/activation_files.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace penstock::engine {
namespace {

std::vector<double> shares_of(const std::vector<double>& weights, size_t drives) {
  std::vector<double> shares = weights.size() == drives ? weights : std::vector<double>(drives, 1.0);
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

}  // namespace

ActivationFiles::ActivationFiles(aio::DriveFolders folders, const std::vector<double>& shares, uint32_t rank)
    : name_(text("rank", rank, ".activations.scratch")), folders_(folders.begin(), folders.end()), stripes_(shares) {}

Result<std::unique_ptr<ActivationFiles>> ActivationFiles::make(aio::DriveFolders folders,
                                                               const std::vector<double>& weights, const Plan& plan,
                                                               uint32_t rank) {
  auto made = std::unique_ptr<ActivationFiles>(new ActivationFiles(folders, shares_of(weights, folders.size()), rank));
  uint64_t bytes = 0;
  for (const Move& move : plan.moves) {
    if (move.area == Area::spilled_activations) bytes = std::max(bytes, move.place_offset_bytes + move.place_bytes);
  }
  for (size_t drive = 0; drive < folders.size(); ++drive) {
    PENSTOCK_TRY(folders[drive]->remove_file(made->name_));
    if (bytes == 0) continue;
    PENSTOCK_TRY_ASSIGN(file, folders[drive]->create_file(made->name_, made->stripes_.file_bytes(drive, bytes)));
    made->files_.push_back(std::move(file));
  }
  return made;
}

ActivationFiles::~ActivationFiles() {
  for (size_t drive = 0; drive < files_.size(); ++drive) {
    files_[drive].reset();
    (void)folders_[drive]->remove_file(name_);  // what stays behind is removed by the next run
  }
}

std::vector<Extent> ActivationFiles::extents(uint64_t offset_bytes, uint64_t bytes) const {
  std::vector<const File*> files;
  for (const auto& file : files_) files.push_back(file.get());
  std::vector<Extent> found;
  stripes_.map(files, offset_bytes, bytes, 0, found);
  return found;
}

}  // namespace penstock::engine
