// What one parameter's training state consists of: the planes that an optimizer keeps, and where each lies in a tile.
//
// A plane holds one value per element of one role. A tile's slot holds its weight, if that rests there, and behind it
// the resting planes (all but weight and gradient) one after another, each starting at a multiple of kAlignmentBytes,
// so that one read brings them all.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tiering/status.h"
#include "tiering/tier.h"

namespace penstock {

// nf4_pair: one byte with the codes of two elements.
enum class Dtype : uint8_t { fp32, bf16, fp16, int8, uint16, nf4_pair };

enum class Role : uint8_t {
  weight,  // what forward and backward use; in split form also the master's high half
  gradient,
  master,          // fp32
  master_low,      // the low 16 bits of a split master
  momentum,        // m, or Lion's and SGD's only moment
  variance,        // v, or Adagrad's sum of squares
  momentum_scale,  // one fp32 per kMomentBlockElements elements of an int8 momentum
  variance_scale,  // likewise
  weight_scale,    // one fp32 per kCodeBlockElements elements of a weight that rests in codes
};

// In the order of penstock_optimizer.
enum class OptimizerKind : uint8_t { adamw, adam, adagrad, lion, sgd };
inline constexpr std::array kOptimizerKinds{OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::adagrad,
                                            OptimizerKind::lion, OptimizerKind::sgd};

// Which moments an optimizer keeps.
struct KeptMoments {
  bool momentum = false;
  bool variance = false;
};
constexpr KeptMoments kept_moments(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adamw:
    case OptimizerKind::adam:
      return {.momentum = true, .variance = true};
    case OptimizerKind::adagrad:
      return {.variance = true};
    case OptimizerKind::lion:
    case OptimizerKind::sgd:
      return {.momentum = true};
  }
  return {};
}
constexpr bool has_momentum(OptimizerKind kind) { return kept_moments(kind).momentum; }
constexpr bool has_variance(OptimizerKind kind) { return kept_moments(kind).variance; }

// split: bf16 weight is the top half of the fp32 master, the tile keeps the low half. full: an fp32 master beside a
// 16-bit weight. same: the weight is fp32 and is its own master.
enum class MasterForm : uint8_t { split, full, same };

// bf16 moments are rounded stochastically; int8 moments are scaled block by block.
enum class MomentForm : uint8_t { fp32, bf16, int8 };

constexpr uint64_t kMomentBlockElements = 256;

// How frozen weights rest in fewer bits than they are computed with: arithmetic/block_codes.h defines each.
enum class BlockCode : uint8_t { int8, int4, nf4 };
constexpr uint64_t kCodeBlockElements = 64;

struct StateForm {
  OptimizerKind optimizer = OptimizerKind::adamw;
  MasterForm master = MasterForm::split;
  MomentForm moments = MomentForm::fp32;
  Dtype weight = Dtype::bf16;
  Dtype gradient = Dtype::bf16;

  bool operator==(const StateForm&) const = default;
};

constexpr uint64_t bytes_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp32:
      return 4;
    case Dtype::bf16:
    case Dtype::fp16:
    case Dtype::uint16:
      return 2;
    case Dtype::int8:
    case Dtype::nf4_pair:
      return 1;
  }
  return 0;
}

struct Plane {
  Role role;
  Dtype dtype;

  // How many values `elements` elements have: one each, one a pair, or one scale a block of them.
  uint64_t values(uint64_t elements) const;
  // Bytes that they take, unpadded.
  uint64_t bytes(uint64_t elements) const { return bytes_of(dtype) * values(elements); }
  bool operator==(const Plane&) const = default;
};

const char* name_of(Dtype dtype);
const char* name_of(Role role);
const char* name_of(OptimizerKind kind);
const char* name_of(BlockCode code);

// A split master needs a bf16 weight; a weight that is its own master needs fp32.
Status validate(const StateForm& form);

// The planes that rest in a tile, in the order in which they lie there. Neither weight nor gradient is among them.
std::vector<Plane> resting_planes(const StateForm& form);

// Where frozen weights rest in codes, the planes of a tile: the codes, then their scales. REQUIRES: int8 or nf4.
std::vector<Plane> coded_planes(BlockCode code);

// Where each resting plane of a tile of `elements` elements begins, counted from the end of the weight, and how long
// the whole is.
struct TileLayout {
  struct Place {
    Plane plane;
    uint64_t offset_bytes;
    uint64_t length_bytes;  // unpadded
  };
  std::vector<Place> places;
  uint64_t size_bytes = 0;  // a multiple of kAlignmentBytes

  // `planes` one after another; those of the form are its resting planes.
  TileLayout(std::span<const Plane> planes, uint64_t elements);
  TileLayout(const StateForm& form, uint64_t elements) : TileLayout(resting_planes(form), elements) {}
  const Place* find(Role role) const;
};

}  // namespace penstock
