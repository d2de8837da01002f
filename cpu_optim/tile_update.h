// TileUpdater takes one optimizer step over a tile in one pass: it widens and scales the gradient, updates, and writes
// the new master, moments and weight. On request it also computes the norm of the gradient and checksums of what it
// read and wrote.
//
// The arithmetic is that of the scalar kernel (tiering/arithmetic/optimizer.h), bit for bit, on every Isa, at any
// length, offset and alignment, and in any floating-point mode of the caller, which is restored (flush_scope.h).
//   Scaled gradients and weights below 2^-119 and moments below 2^-100 count as zero and keep their sign.
//   With bf16 and int8 moments, momenta below 2^-63 are zero, and so are weights of adamw and adam, without a sign.
//   Int8 moments are also zero below 2^-15 of the largest in their block (byte_moments.h), and in a block in which none
//   is above 2^-49.
//   NaN and infinity pass through. A NaN is written as 0x7fc00000 (0x7fc0 in bf16, 0x7e00 in fp16). A block of int8
//   moments that holds one, or a number too large for it, becomes NaN as a whole, and its weights do so in the next
//   step.
// Immutable. Any number of threads may call update() at the same time on tiles that share no bytes.
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

// Where a plane is read and where it is written: at the same address (in place), or in two places that do not overlap.
struct PlaneView {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;

  static PlaneView in_place(std::byte* bytes) { return {bytes, bytes}; }
};

// Some elements and where their planes lie. Owns nothing.
struct TileView {
  PlaneView weight;                     // form.weight; with a full master only written, so that source may be null
  const std::byte* gradient = nullptr;  // form.gradient
  std::array<PlaneView, kRestingPlanesMax>
      planes;  // in the order of resting_planes(form); further entries are not read
  uint64_t elements = 0;
  // Index of the first element in its unit. Stochastic rounding is a function of it. It is a multiple of
  // kMomentBlockElements with int8 moments, and of kBlockElements with checksums or square sums.
  uint64_t first_element = 0;

  // A tile that is updated in place. Its resting planes begin at `planes`, as TileLayout says.
  static TileView in_place(const TileLayout& layout, std::byte* planes, std::byte* weight, const std::byte* gradient,
                           uint64_t elements, uint64_t first_element);
};

// What the pass should report. Empty spans are not filled. Blocks are kBlockElements long, counted from the tile's
// first element. The last one may be shorter.
struct TileNotes {
  std::span<double> square_sums;  // by block: of the gradient before scaling (see gradient.h)
  // The checksum of each plane's part of each block, at [block * (1 + planes) + plane], where plane 0 is the weight.
  // Its seed is checksum_seed + that index. With a full master the weight is not read, so its source entries are
  // neither written nor compared.
  uint64_t checksum_seed = 0;
  std::span<uint64_t> source_checksums;          // of what was read
  std::span<uint64_t> target_checksums;          // of what was written
  std::span<const uint64_t> expected_checksums;  // what was read is compared with it
};

struct TileReport {
  bool gradient_finite = true;  // false only if square_sums were requested
  // The first entry of expected_checksums that differs. The tile has been updated nevertheless: discard it.
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
  // Each run of elements has its own numbers, as if it were a tile, or is left untouched. `runs` ascend and reach the
  // tile's end. With int8 moments they end at multiples of kMomentBlockElements or at the tile's end.
  TileReport update(const TileView& tile, std::span<const NumbersRun> runs, const TileNotes& notes = {}) const;

  const StateForm& form() const { return form_; }
  // The weight, then the resting planes.
  std::span<const Plane> planes() const { return planes_; }
  Isa isa() const;
  // How many checksums a tile of `elements` elements has.
  uint64_t checksum_count(uint64_t elements) const { return ceil_div(elements, kBlockElements) * planes_.size(); }

 private:
  StateForm form_;
  std::vector<Plane> planes_;  // the weight, then the resting planes
  const struct Kernels* kernels_;
};

}  // namespace penstock::cpu_optim
