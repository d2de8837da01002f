// Moments in bytes (tiering/arithmetic/byte_moments.h). The scale of a block is known only after all of it has been
// updated and rounded, so it is rounded into memory that stays in the first-level cache and encoded from there. Rounded
// moments are 16-bit numbers, two in a lane. Bytes are unpacked into such numbers first and packed from them last.
#pragma once

#include "cpu_optim/update_kernel.h"
#include "tiering/arithmetic/byte_moments.h"

namespace penstock::cpu_optim {

template <class L, OptimizerKind kKind, MasterForm kMaster>
struct ByteUpdatePass : UpdatePass<L, kKind, kMaster, MomentForm::int8> {
  using Base = UpdatePass<L, kKind, kMaster, MomentForm::int8>;
  using O = typename Base::O;
  using Bits = typename L::Bits;
  using Floats = typename O::Floats;
  using Words = typename O::Words;
  static constexpr uint64_t kGroup = arithmetic::kRandomGroup;
  static_assert(kMomentBlockElements % kGroup == 0 && kGroup % O::kElements == 0 && kGroup == kGroupElements);
  static constexpr uint32_t kSign = 0x8000, kNoSign = 0x7fff;
  static constexpr int kMomentumShift = arithmetic::kMomentumHalfShift, kRootShift = arithmetic::kRootHalfShift;

  PENSTOCK_LANES constexpr uint32_t twice(uint32_t half) { return half * 0x1'0001u; }

  PENSTOCK_LANES float load_scale(const std::byte* scales, uint64_t block) {
    float scale;
    __builtin_memcpy(&scale, scales + block * 4, 4);
    return scale;
  }

  PENSTOCK_LANES Floats load_momentum(const std::byte* source) {
    constexpr uint32_t kMagnitude = arithmetic::kMomentumCode.magnitude_mask << kMomentumShift;
    const Bits codes = (L::load8_signed(source) << kMomentumShift) & L::bits(twice(kSign | kMagnitude));
    return Base::as_floats(
        O::parted(L::sum_if_set16(codes, twice(kMagnitude), L::bits(twice(arithmetic::kByteUnitHalf)))));
  }
  PENSTOCK_LANES Floats load_root(const std::byte* source) {
    return Base::as_floats(O::parted((L::load8(source) << kRootShift) + L::bits(twice(arithmetic::kByteUnitHalf))));
  }

  // Each place's turn of its group's random bits, cut to what a moment drops, in the order of the registers.
  struct Turns {
    alignas(64) std::byte momentum[kGroup * 4];
    alignas(64) std::byte root[kGroup * 4];
  };
  PENSTOCK_LANES void make_turns(Turns& turns) {
    const Words counters = O::indices(arithmetic::kRandomStep);
    for (uint32_t place = 0; place < kGroup; place += O::kElements) {
      const Words turn = Base::random_words(counters, arithmetic::kTurnKey + place);
      for (size_t k = 0; k < O::kRegisters; ++k) {
        const uint64_t at = place * 4 + k * L::kWidth * 4;
        L::store_bits(turns.momentum + at, turn.at[k] >> (32 - arithmetic::kMomentumCode.shift));
        L::store_bits(turns.root + at, turn.at[k] & L::bits((1u << arithmetic::kRootCode.shift) - 1));
      }
    }
  }

  struct Rounded {
    alignas(64) std::byte momentum[kMomentBlockElements * 2];
    alignas(64) std::byte root[kMomentBlockElements * 2];
  };
  struct Largest {
    Bits momentum, root;
  };
  // A group's random bits, cut the same way.
  struct Draw {
    Bits momentum, root;
  };

  // The first half of the step of a register's elements.
  PENSTOCK_LANES typename Base::Elements begun(const TilePart& run, const Coefficients& c,
                                               const arithmetic::Scales& scales, uint64_t i) {
    typename Base::Elements e;
    e.gradient = Base::load_gradient(run, i);
    e.weight = Base::load_weight(run, i);
    if constexpr (Base::kHasMomentum) e.momentum = load_momentum(run.planes[Base::kMomentum].source + i);
    if constexpr (Base::kHasVariance) e.variance = load_root(run.planes[Base::kVariance].source + i);
    Base::step_moments(c, scales, e);
    return e;
  }

  PENSTOCK_LANES Bits turned(const std::byte* turns, size_t k, Bits random) {
    return L::load_bits(turns + k * L::kWidth * 4) ^ random;
  }
  PENSTOCK_LANES void round(const typename Base::Elements& e, const Draw& draw, const Turns& turns, uint64_t in_block,
                            Rounded& block, Largest& largest) {
    const uint64_t place = in_block % kGroup;
    Words sums;
    if constexpr (Base::kHasMomentum) {
      for (size_t k = 0; k < O::kRegisters; ++k) {
        sums.at[k] = L::as_bits(e.momentum.at[k]) + turned(turns.momentum + place * 4, k, draw.momentum);
      }
      const Bits halves = O::joined_upper(sums);
      largest.momentum = L::larger16(largest.momentum, halves & L::bits(twice(kNoSign)));
      L::store_bits(block.momentum + in_block * 2, halves);
    }
    if constexpr (Base::kHasVariance) {
      for (size_t k = 0; k < O::kRegisters; ++k) {
        sums.at[k] = L::as_bits(e.variance.at[k]) + turned(turns.root + place * 4, k, draw.root);
      }
      const Bits halves = O::joined_upper(sums);
      largest.root = L::larger16(largest.root, halves);
      L::store_bits(block.root + in_block * 2, halves);
    }
  }
  // Rounding may have lost a NaN among the moments: it makes its block's largest, and with it the scale, one.
  PENSTOCK_LANES Bits largest_with_nan(Bits largest, const Floats& x) {
    Words bits;
    for (size_t k = 0; k < O::kRegisters; ++k) bits.at[k] = L::as_bits(L::one_nan(x.at[k]));
    return L::larger16(largest, O::joined_upper(bits) & L::bits(twice(kNoSign)));
  }
  PENSTOCK_LANES void finish(const TilePart& run, const Coefficients& c, typename Base::Elements& e, uint64_t i,
                             Largest& largest) {
    Base::step_weight(c, e);
    if (Base::any_nan(e)) [[unlikely]] {
      for (size_t k = 0; k < O::kRegisters; ++k) e.weight.at[k] = L::one_nan(e.weight.at[k]);
      if constexpr (Base::kHasMomentum) largest.momentum = largest_with_nan(largest.momentum, e.momentum);
      if constexpr (Base::kHasVariance) largest.root = largest_with_nan(largest.root, e.variance);
    }
    Base::store_weight(run, i, e.weight);
  }

  // A block that is rounded but not yet coded: its scales are written, and where its codes go is known. A block of
  // zeros, and one of NaN, is codes of zero: nothing exceeds its base.
  struct Coding {
    Bits base;
    uint32_t sign_mask;
  };
  struct Uncoded {
    Coding momentum, root;
    uint64_t first;
  };
  PENSTOCK_LANES Coding write_scale(std::byte* scales, uint64_t first, uint32_t scale) {
    const uint32_t bits = scale << 16;
    __builtin_memcpy(scales + first / kMomentBlockElements * 4, &bits, 4);
    if (!arithmetic::has_codes(arithmetic::scale_of_half(scale))) return {L::bits(0xffff'ffff), 0};
    return {L::bits(twice(scale - arithmetic::kByteExponentsHalf)), twice(kSign >> 8)};
  }
  PENSTOCK_LANES Uncoded write_scales(const TilePart& run, uint64_t first, const Largest& largest) {
    Uncoded uncoded{};
    uncoded.first = first;
    if constexpr (Base::kHasMomentum) {
      uncoded.momentum = write_scale(run.planes[Base::kMomentumScale].target, first,
                                     arithmetic::momentum_scale_half(L::largest_of16(largest.momentum)));
    }
    if constexpr (Base::kHasVariance) {
      uncoded.root = write_scale(run.planes[Base::kVarianceScale].target, first,
                                 arithmetic::root_scale_half(L::largest_of16(largest.root)));
    }
    return uncoded;
  }
  PENSTOCK_LANES Bits momentum_codes(const std::byte* rounded, const Coding& coding) {
    const Bits halves = L::load_bits(rounded);
    const Bits codes = L::shift_right16(L::excess16(halves & L::bits(twice(kNoSign)), coding.base), kMomentumShift);
    return L::select_bits(coding.sign_mask, halves >> 8, codes);
  }
  PENSTOCK_LANES Bits root_codes(const std::byte* rounded, const Coding& coding) {
    return L::shift_right16(L::excess16(L::load_bits(rounded), coding.base), kRootShift);
  }
  PENSTOCK_LANES void write_codes(const TilePart& run, const Uncoded& uncoded, const Rounded& block,
                                  uint64_t in_block) {
    constexpr uint64_t kCodes = L::kWidth * 4;
    for (uint64_t j = in_block; j < in_block + kGroup; j += kCodes) {
      if constexpr (Base::kHasMomentum) {
        const std::byte* halves = block.momentum + j * 2;
        L::store_bits(
            run.planes[Base::kMomentum].target + uncoded.first + j,
            L::packed8(momentum_codes(halves, uncoded.momentum), momentum_codes(halves + kCodes, uncoded.momentum)));
      }
      if constexpr (Base::kHasVariance) {
        const std::byte* halves = block.root + j * 2;
        L::store_bits(run.planes[Base::kVariance].target + uncoded.first + j,
                      L::packed8(root_codes(halves, uncoded.root), root_codes(halves + kCodes, uncoded.root)));
      }
    }
  }

  // Prefetches a later group and draws the random bits of this one.
  PENSTOCK_LANES Draw group_opened(const TilePart& run, uint64_t i) {
    Base::template prefetch<kGroup>(run, i);
    const uint32_t index = run.random_index + static_cast<uint32_t>(i);
    const uint32_t random = arithmetic::group_random_bits(run.random_key, index / arithmetic::kRandomGroup);
    return {L::bits(arithmetic::momentum_random(random)), L::bits(arithmetic::root_random(random))};
  }

  // Elements are finished after the next have begun: a processor looks some hundred instructions ahead, and the chain
  // through a root and a quotient is longer.
  // `before` is the block before, if there is one, whose codes are written group by group meanwhile.
  PENSTOCK_LANES Largest update_block(const TilePart& run, const Coefficients& c, uint64_t first, const Turns& turns,
                                      Rounded& block, const Uncoded& before, const Rounded& block_before) {
    const uint64_t number = first / kMomentBlockElements;
    arithmetic::Scales scales{run.gradient_scale, 1, 1};
    if constexpr (Base::kHasMomentum) scales.momentum = load_scale(run.planes[Base::kMomentumScale].source, number);
    if constexpr (Base::kHasVariance) scales.root = load_scale(run.planes[Base::kVarianceScale].source, number);
    Largest largest{L::bits(0), L::bits(0)};
    Draw draw = group_opened(run, first);
    typename Base::Elements e = begun(run, c, scales, first);
    round(e, draw, turns, 0, block, largest);
    if (first != 0) write_codes(run, before, block_before, 0);
    for (uint64_t at = O::kElements; at < kMomentBlockElements; at += O::kElements) {
      if (at % kGroup == 0) {
        draw = group_opened(run, first + at);
        if (first != 0) write_codes(run, before, block_before, at);
      }
      const typename Base::Elements next = begun(run, c, scales, first + at);
      round(next, draw, turns, at, block, largest);
      finish(run, c, e, first + at - O::kElements, largest);
      e = next;
    }
    finish(run, c, e, first + kMomentBlockElements - O::kElements, largest);
    return largest;
  }

  static void run(const TilePart& run_in_memory, const Coefficients& coefficients_in_memory) {
    const TilePart run = run_in_memory;
    const Coefficients c = coefficients_in_memory;
    Turns turns;
    make_turns(turns);
    Rounded blocks[2];
    Uncoded before{};
    for (uint64_t first = 0; first < run.elements; first += kMomentBlockElements) {
      Rounded& block = blocks[first / kMomentBlockElements % 2];
      const Rounded& block_before = blocks[(first / kMomentBlockElements + 1) % 2];
      before = write_scales(run, first, update_block(run, c, first, turns, block, before, block_before));
    }
    const Rounded& last = blocks[before.first / kMomentBlockElements % 2];
    for (uint64_t at = 0; at < kMomentBlockElements; at += kGroup) write_codes(run, before, last, at);
  }
};

}  // namespace penstock::cpu_optim
