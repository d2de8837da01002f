// TileUpdater takes one optimizer step over a tile in one pass: widen and scale the gradient, update, write the new
// master, moments and weight; on request also the norm of what came in and checksums of what was read and written.
//
// The arithmetic is that of the scalar kernel (tiering/arithmetic/optimizer.h), bit for bit, on every Isa, at any
// length, offset and alignment, and whatever the caller's floating-point mode, which is restored (flush_scope.h).
//   Scaled gradients and weights below 2^-119 and moments below 2^-100 count as zero, sign kept. With bf16 and int8
//   moments momenta are zero below 2^-63, and so are adamw's and adam's weights, without a sign; of int8 moments those
//   are besides that are below 2^-15 of their block's largest (byte_moments.h), or in a block of none above 2^-49.
//   NaN and infinity pass through; a NaN is written as 0x7fc00000 (0x7fc0 in bf16, 0x7e00 in fp16). An int8 moment
//   block that holds one, or a number too large for it, becomes NaN as a whole: its weights do with the next step.
// Immutable after it is made; any number of threads may call update() at once on tiles that share no bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu_optim/isa.h"
#include "tiering/state_layout.h"
#include "tiering/step_numbers.h"

namespace penstock::cpu_optim {

// master or master_low, momentum, variance, and a scale for each.
constexpr size_t kRestingPlanesMax = 5;

// Where a plane is read and where it is written: the same address (in place), or two runs that do not overlap.
struct PlaneView {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;

  static PlaneView in_place(std::byte* bytes) { return {bytes, bytes}; }
};

// A run of elements and where its planes lie. Owns nothing.
struct TileView {
  PlaneView weight;                     // form.weight. With a full master it is only written: source may be null
  const std::byte* gradient = nullptr;  // form.gradient
  std::array<PlaneView, kRestingPlanesMax> planes;  // in the order of resting_planes(form); the rest is not read
  uint64_t elements = 0;
  // Index of the first element in its unit; stochastic rounding is a function of it. With int8 moments it is a multiple
  // of kMomentBlockElements; with checksums or square sums a multiple of kBlockElements.
  uint64_t first_element = 0;

  // A tile whose resting planes lie in one slot as TileLayout says, updated in place.
  static TileView in_place(const TileLayout& layout, std::byte* slot, std::byte* weight, const std::byte* gradient,
                           uint64_t elements, uint64_t first_element);
};

// What the pass shall report besides doing its work; an empty span is not asked for. Blocks are kBlockElements long,
// counted from the tile's first element; the last may be shorter.
struct TileNotes {
  std::span<double> square_sums;  // per block: gradient as it lies, before scaling (see gradient.h)
  // tiering/arithmetic/checksum.h over each plane's part of each block, at [block * (1 + planes) + plane], plane 0 the
  // weight, with seed checksum_seed + that index. A full master's weight is not read: its entries are left alone and
  // not compared.
  uint64_t checksum_seed = 0;
  std::span<uint64_t> source_checksums;          // of what was read
  std::span<uint64_t> target_checksums;          // of what was written
  std::span<const uint64_t> expected_checksums;  // what was read is compared with it
};

struct TileReport {
  bool gradient_finite = true;  // known when square_sums were asked for
  // First entry of expected_checksums that differs, if one does. The tile has been updated all the same: discard it.
  static constexpr uint64_t kNone = ~uint64_t{0};
  uint64_t checksum_mismatch = kNone;

  bool ok() const { return gradient_finite && checksum_mismatch == kNone; }
};

class TileUpdater {
 public:
  // REQUIRES: validate(form) is ok and `isa` is among available_isas().
  explicit TileUpdater(const StateForm& form, Isa isa = best_isa());

  // Runs on the calling thread.
  TileReport update(const TileView& tile, const StepNumbers& numbers, const TileNotes& notes = {}) const;
  // Each run of the unit's elements with numbers of its own, as if each had been a tile: `runs` ascend and reach the
  // tile's end. With int8 moments they end at multiples of kMomentBlockElements, or at the tile's end.
  TileReport update(const TileView& tile, std::span<const NumbersRun> runs, const TileNotes& notes = {}) const;

  const StateForm& form() const { return form_; }
  // The weight, then the resting planes.
  std::span<const Plane> planes() const { return planes_; }
  Isa isa() const;
  // Entries of a checksum span for a tile of `elements` elements.
  uint64_t checksum_count(uint64_t elements) const { return ceil_div(elements, kBlockElements) * planes_.size(); }

 private:
  StateForm form_;
  std::vector<Plane> planes_;  // the weight, then the resting planes
  const struct Kernels* kernels_;
};

}  // namespace penstock::cpu_optim
