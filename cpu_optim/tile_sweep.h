// TileSweep carries out one update() of a tile. It cuts the tile into parts for the kernels, each within one parameter
// group, copies a ragged rest into zero-filled memory, and takes the notes before and after each part, while its bytes
// are in the first-level cache. For this folder alone.
#pragma once

#include <array>
#include <span>

#include "cpu_optim/kernels.h"
#include "cpu_optim/running_checksum.h"
#include "cpu_optim/tile_update.h"

namespace penstock::cpu_optim {

class TileSweep {
 public:
  // `planes` is TileUpdater's list. All arguments outlive the pass.
  TileSweep(const Kernels& kernels, const StateForm& form, std::span<const Plane> planes, const TileView& tile,
            std::span<const NumbersRun> runs, const TileNotes& notes);

  TileReport run();

 private:
  struct BlockNotes {
    std::array<RunningChecksum, kPlanesMax> source, target;
    alignas(64) std::array<double, kSquareSumLanes> square_sums{};
  };

  bool wants_square_sums() const { return !notes_.square_sums.empty(); }
  bool wants_source() const { return !notes_.source_checksums.empty() || !notes_.expected_checksums.empty(); }
  bool wants_target() const { return !notes_.target_checksums.empty(); }
  bool is_read(size_t plane) const { return plane != 0 || form_.master != MasterForm::full; }

  void run_block(uint64_t first, uint64_t elements);
  void note_before(BlockNotes& block, uint64_t first, uint64_t elements);
  void note_after(BlockNotes& block, uint64_t first, uint64_t elements);
  void conclude(const BlockNotes& block, uint64_t number);

  void update(uint64_t first, uint64_t elements);
  void keep(uint64_t first, uint64_t elements);
  void update_ragged(const TilePart& run, const Coefficients& coefficients);
  const NumbersRun& numbers_at(uint64_t index);
  TilePart run_at(uint64_t first, uint64_t elements, const StepNumbers& numbers) const;
  bool may_stream_weight() const;

  const Kernels& kernels_;
  const StateForm& form_;
  const std::span<const Plane> planes_;
  const TileView& tile_;
  std::span<const NumbersRun> runs_;  // from the one on that has the next element
  const TileNotes& notes_;
  const UpdateKernel kernel_;
  const uint64_t group_elements_;
  const bool streams_weight_;
  std::array<PlaneView, kPlanesMax> views_;
  TileReport report_;
};

}  // namespace penstock::cpu_optim
