#include "runtime/engine/spill_files.h"

#include <utility>

#include "tiering/store/store_layout.h"

namespace penstock::engine {

SpillFiles::SpillFiles(std::unique_ptr<ScratchFiles> files, std::vector<Extent> places)
    : files_(std::move(files)), places_(std::move(places)) {}

Result<std::unique_ptr<SpillFiles>> SpillFiles::make(aio::DriveFolders folders, const std::vector<double>& weights,
                                                     const Plan& plan, uint32_t rank) {
  const std::vector<uint32_t> shares = shares_of(weights, static_cast<uint32_t>(folders.size()));
  std::vector<uint64_t> used(folders.size(), 0);
  std::vector<Extent> places(plan.tiles.size());
  std::vector<uint32_t> drive_of(plan.tiles.size(), 0);
  for (TileId tile = 0; tile < plan.tiles.size(); ++tile) {
    if (plan.of_tile[tile].spill == kNoMove) continue;
    const uint32_t drive = drive_of[tile] = furthest_below_share(used, shares);
    const uint64_t bytes = plan.tiles[tile].gradient_bytes;
    places[tile] = {nullptr, used[drive], 0, bytes};
    used[drive] += bytes;
  }
  PENSTOCK_TRY_ASSIGN(files, ScratchFiles::make(folders, rank, "gradients", used));
  for (TileId tile = 0; tile < plan.tiles.size(); ++tile) places[tile].file = files->files()[drive_of[tile]];
  return std::unique_ptr<SpillFiles>(new SpillFiles(std::move(files), std::move(places)));
}

}  // namespace penstock::engine
