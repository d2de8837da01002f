#include "runtime/engine/spill_files.h"

#include <algorithm>

namespace penstock::engine {

SpillFiles::SpillFiles(uint32_t rank) : name_(text("rank", rank, ".gradients.scratch")) {}

Result<std::unique_ptr<SpillFiles>> SpillFiles::make(aio::DriveFolders folders, const std::vector<double>& weights,
                                                     const Plan& plan, uint32_t rank) {
  auto spill = std::make_unique<SpillFiles>(rank);
  spill->folders_.assign(folders.begin(), folders.end());
  spill->places_.resize(plan.tiles.size());
  std::vector<uint64_t> used(folders.size(), 0);
  std::vector<size_t> drive_of(plan.tiles.size(), 0);
  for (uint32_t tile = 0; tile < plan.tiles.size(); ++tile) {
    if (plan.of_tile[tile].spill == kNoMove) continue;
    // The drive that is furthest below its share.
    size_t best = 0;
    auto filled = [&](size_t drive) {
      return static_cast<double>(used[drive]) / (drive < weights.size() ? weights[drive] : 1.0);
    };
    for (size_t drive = 1; drive < folders.size(); ++drive) best = filled(drive) < filled(best) ? drive : best;
    drive_of[tile] = best;
    uint64_t bytes = plan.tiles[tile].gradient_bytes;
    spill->places_[tile] = {nullptr, used[best], 0, bytes};
    used[best] += bytes;
  }
  for (size_t drive = 0; drive < folders.size(); ++drive) {
    PENSTOCK_TRY(folders[drive]->remove_file(spill->name_));
    spill->files_.push_back(nullptr);
    if (used[drive] == 0) continue;
    PENSTOCK_TRY_ASSIGN(file, folders[drive]->create_file(spill->name_, used[drive]));
    spill->files_.back() = std::move(file);
  }
  for (uint32_t tile = 0; tile < plan.tiles.size(); ++tile) {
    if (plan.of_tile[tile].spill != kNoMove) spill->places_[tile].file = spill->files_[drive_of[tile]].get();
  }
  return spill;
}

SpillFiles::~SpillFiles() {
  for (size_t drive = 0; drive < files_.size(); ++drive) {
    if (!files_[drive]) continue;
    files_[drive].reset();
    (void)folders_[drive]->remove_file(name_);  // what stays behind is removed by the next run
  }
}

}  // namespace penstock::engine
