// Moments in bytes (tiering/arithmetic/byte_moments.h). A block's scale is known only when all of it has been updated
// and rounded, so it is rounded into memory that stays in the first cache, and coded from there. Rounded moments are
// 16-bit numbers, two to a lane; bytes are taken apart into such numbers first and put together from them last.
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
  static constexpr uint32_t kSign = 0x8000'8000, kNoSign = 0x7fff'7fff;
  static constexpr int kMomentumShift = arithmetic::kMomentumHalfShift, kRootShift = arithmetic::kRootHalfShift;

  PENSTOCK_LANES Bits twice(uint32_t half) { return L::bits(half * 0x1'0001u); }

  // What decoding a block needs: where its codes count from, and what a byte of zero stands for (zero, or NaN where the
  // whole block is NaN: then all its bytes are zero).
  struct Scale {
    Bits base, of_zero;
  };
  PENSTOCK_LANES Scale load_scale(const std::byte* scales, uint64_t block) {
    uint32_t bits;
    __builtin_memcpy(&bits, scales + block * 4, 4);
    const uint32_t half = bits >> 16;
    return {twice((half - arithmetic::kByteExponentsHalf) & 0xffffu),
            twice((half & arithmetic::kMagnitudeHalf) > arithmetic::kInfinityHalf ? half : 0)};
  }

  PENSTOCK_LANES Floats load_momentum(const std::byte* source, const Scale& scale) {
    const Bits bytes = L::load8_signed(source);
    const Bits magnitude =
        (bytes << kMomentumShift) & twice(arithmetic::kMomentumCode.magnitude_mask << kMomentumShift);
    return Base::as_floats(
        O::parted(L::select_bits(kSign, bytes, L::add_if_set16(magnitude, scale.base, scale.of_zero))));
  }
  PENSTOCK_LANES Floats load_root(const std::byte* source, const Scale& scale) {
    return Base::as_floats(O::parted(L::add_if_set16(L::load8(source) << kRootShift, scale.base, scale.of_zero)));
  }

  struct Scales {
    Scale momentum, root;
  };

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

  PENSTOCK_LANES Bits rounded(const Floats& x, Bits random, const std::byte* turns) {
    Words sums;
    for (size_t k = 0; k < O::kRegisters; ++k) {
      sums.at[k] = L::as_bits(x.at[k]) + (L::load_bits(turns + k * L::kWidth * 4) ^ random);
    }
    return O::joined_upper(sums);
  }

  // The first half of the step of a register's elements, with their moments rounded.
  PENSTOCK_LANES typename Base::Elements begun(const UpdateRun& run, const Coefficients& c, const Scales& scales,
                                               uint64_t i) {
    typename Base::Elements e;
    e.gradient = Base::load_gradient(run, i);
    e.weight = Base::load_weight(run, i);
    if constexpr (Base::kHasMomentum) {
      e.momentum = load_momentum(run.planes[Base::kMomentum].source + i, scales.momentum);
    }
    if constexpr (Base::kHasVariance) {
      e.variance = load_root(run.planes[Base::kVariance].source + i, scales.root);
    }
    Base::step_moments(run, c, e);
    return e;
  }
  PENSTOCK_LANES void round(const typename Base::Elements& e, uint32_t random, const Turns& turns, uint64_t in_block,
                            Rounded& block, Largest& largest) {
    const uint64_t place = in_block % kGroup;
    if constexpr (Base::kHasMomentum) {
      const Bits halves = rounded(e.momentum, L::bits(arithmetic::momentum_random(random)), turns.momentum + place * 4);
      largest.momentum = L::larger16(largest.momentum, halves & L::bits(kNoSign));
      L::store_bits(block.momentum + in_block * 2, halves);
    }
    if constexpr (Base::kHasVariance) {
      const Bits halves = rounded(e.variance, L::bits(arithmetic::root_random(random)), turns.root + place * 4);
      largest.root = L::larger16(largest.root, halves);
      L::store_bits(block.root + in_block * 2, halves);
    }
  }
  // Rounding may have lost a NaN among the moments: it makes its block's largest, and with it the scale, one.
  PENSTOCK_LANES Bits largest_with_nan(Bits largest, const Floats& x) {
    Words bits;
    for (size_t k = 0; k < O::kRegisters; ++k) bits.at[k] = L::as_bits(L::one_nan(x.at[k]));
    return L::larger16(largest, O::joined_upper(bits) & L::bits(kNoSign));
  }
  PENSTOCK_LANES void finish(const UpdateRun& run, const Coefficients& c, typename Base::Elements& e, uint64_t i,
                             Largest& largest) {
    Base::step_weight(c, e);
    if (Base::any_nan(e)) [[unlikely]] {
      for (size_t k = 0; k < O::kRegisters; ++k) e.weight.at[k] = L::one_nan(e.weight.at[k]);
      if constexpr (Base::kHasMomentum) largest.momentum = largest_with_nan(largest.momentum, e.momentum);
      if constexpr (Base::kHasVariance) largest.root = largest_with_nan(largest.root, e.variance);
    }
    Base::store_weight(run, i, e.weight);
  }

  // Asks for a later group's lines and draws this one's random bits.
  PENSTOCK_LANES uint32_t group_opened(const UpdateRun& run, uint64_t i) {
    Base::template prefetch<kGroup>(run, i);
    const uint32_t index = run.random_index + static_cast<uint32_t>(i);
    return arithmetic::group_random_bits(run.random_key, index / arithmetic::kRandomGroup);
  }

  // Elements are finished after the next have begun: a processor looks some hundred instructions ahead, and the chain
  // through a root and a quotient is longer.
  PENSTOCK_LANES Largest update_block(const UpdateRun& run, const Coefficients& c, uint64_t first, const Turns& turns,
                                      Rounded& block) {
    const uint64_t number = first / kMomentBlockElements;
    Scales scales{};
    if constexpr (Base::kHasMomentum) scales.momentum = load_scale(run.planes[Base::kMomentumScale].source, number);
    if constexpr (Base::kHasVariance) scales.root = load_scale(run.planes[Base::kVarianceScale].source, number);
    Largest largest{L::bits(0), L::bits(0)};
    uint32_t random = group_opened(run, first);
    typename Base::Elements e = begun(run, c, scales, first);
    round(e, random, turns, 0, block, largest);
    for (uint64_t at = O::kElements; at < kMomentBlockElements; at += O::kElements) {
      if (at % kGroup == 0) random = group_opened(run, first + at);
      const typename Base::Elements next = begun(run, c, scales, first + at);
      finish(run, c, e, first + at - O::kElements, largest);
      round(next, random, turns, at, block, largest);
      e = next;
    }
    finish(run, c, e, first + kMomentBlockElements - O::kElements, largest);
    return largest;
  }

  PENSTOCK_LANES Bits momentum_codes(const std::byte* rounded, Bits base) {
    const Bits halves = L::load_bits(rounded);
    const Bits codes = L::shift_right16(L::excess16(halves & L::bits(kNoSign), base), kMomentumShift);
    return L::select_bits(0x0080'0080, halves >> 8, codes);
  }
  PENSTOCK_LANES Bits root_codes(const std::byte* rounded, Bits base) {
    const Bits halves = L::load_bits(rounded);
    const Bits codes = L::larger16(L::excess16(halves, base), twice(1u << kRootShift));
    return L::shift_right16(L::zero_below16(codes, halves, twice(arithmetic::kRootTinyHalf)), kRootShift);
  }

  // Writes the scale of a block, and its codes.
  enum class Kind { momentum, root };
  template <Kind kCoded>
  PENSTOCK_LANES Bits codes_of(const std::byte* rounded, Bits base) {
    return kCoded == Kind::momentum ? momentum_codes(rounded, base) : root_codes(rounded, base);
  }
  template <Kind kCoded>
  PENSTOCK_LANES void store_moment(std::byte* scales, std::byte* target, uint64_t first, uint32_t scale,
                                   const std::byte* rounded) {
    const uint32_t scale_bits = scale << 16;
    __builtin_memcpy(scales + first / kMomentBlockElements * 4, &scale_bits, 4);
    const Bits base = twice((scale - arithmetic::kByteExponentsHalf) & 0xffffu);
    // A block of zeros, and one of NaN, is bytes of zero.
    const bool is_zero = scale == 0 || scale > arithmetic::kInfinityHalf;
    constexpr uint64_t kCodes = L::kWidth * 4;
    for (uint64_t j = 0; j < kMomentBlockElements; j += kCodes) {
      const Bits codes =
          L::packed8(codes_of<kCoded>(rounded + j * 2, base), codes_of<kCoded>(rounded + j * 2 + kCodes, base));
      L::store_bits(target + first + j, is_zero ? L::bits(0) : codes);
    }
  }

  static void run(const UpdateRun& run_in_memory, const Coefficients& coefficients_in_memory) {
    const UpdateRun run = run_in_memory;
    const Coefficients c = coefficients_in_memory;
    Turns turns;
    make_turns(turns);
    Rounded block;
    for (uint64_t first = 0; first < run.elements; first += kMomentBlockElements) {
      const Largest largest = update_block(run, c, first, turns, block);
      if constexpr (Base::kHasMomentum) {
        const uint32_t scale = arithmetic::scale_half(L::largest_of16(largest.momentum));
        store_moment<Kind::momentum>(run.planes[Base::kMomentumScale].target, run.planes[Base::kMomentum].target, first,
                                     scale, block.momentum);
      }
      if constexpr (Base::kHasVariance) {
        const uint32_t scale = arithmetic::root_scale_half(L::largest_of16(largest.root));
        store_moment<Kind::root>(run.planes[Base::kVarianceScale].target, run.planes[Base::kVariance].target, first,
                                 scale, block.root);
      }
    }
  }
};

}  // namespace penstock::cpu_optim
