#include "cpu_optim/tile_task.h"

#include <algorithm>
#include <cstring>

namespace penstock::cpu_optim {
namespace {

PlaneView advanced(PlaneView view, const Plane& plane, uint64_t elements) {
  if (view.source != nullptr) view.source += plane.bytes(elements);
  if (view.target != nullptr) view.target += plane.bytes(elements);
  return view;
}

template <class T>
std::span<T> from(std::span<T> entries, uint64_t first) {
  return entries.empty() ? entries : entries.subspan(first);
}

}  // namespace

void TileTask::run_piece(uint64_t piece) {
  const uint64_t first = piece * kPieceElements;
  const std::span<const Plane> planes = job.updater->planes();
  TileView tile = job.tile;
  tile.weight = advanced(tile.weight, planes[0], first);
  for (size_t i = 1; i < planes.size(); ++i) tile.planes[i - 1] = advanced(tile.planes[i - 1], planes[i], first);
  tile.gradient += first * bytes_of(job.updater->form().gradient);
  tile.elements = std::min(kPieceElements, job.tile.elements - first);
  tile.first_element += first;

  static_assert(kPieceElements == kBlockElements, "a piece has one block's notes");
  const uint64_t first_checksum = piece * planes.size();
  TileNotes notes = job.notes;
  notes.square_sums = from(notes.square_sums, piece);
  notes.source_checksums = from(notes.source_checksums, first_checksum);
  notes.target_checksums = from(notes.target_checksums, first_checksum);
  notes.expected_checksums = from(notes.expected_checksums, first_checksum);
  notes.checksum_seed += first_checksum;

  TileReport mine = job.updater->update(tile, job.numbers, notes);
  if (job.weight_copy != nullptr) {  // while it is in this processor's cache
    std::memcpy(job.weight_copy + planes[0].bytes(first), tile.weight.target, planes[0].bytes(tile.elements));
  }
  if (mine.checksum_mismatch != TileReport::kNone) mine.checksum_mismatch += first_checksum;
  std::lock_guard lock(mutex);
  report.gradient_finite = report.gradient_finite && mine.gradient_finite;
  report.checksum_mismatch = std::min(report.checksum_mismatch, mine.checksum_mismatch);
}

}  // namespace penstock::cpu_optim
