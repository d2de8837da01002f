// Moments in bytes (tiering/arithmetic/byte_moments.h). A block's scale is known only when all of it has been updated,
// so it is updated into memory that stays in the first cache, and coded from there.
#pragma once

#include "cpu_optim/update_kernel.h"
#include "tiering/arithmetic/byte_moments.h"

namespace penstock::cpu_optim {

template <class L, OptimizerKind kKind, MasterForm kMaster>
struct ByteUpdatePass : UpdatePass<L, kKind, kMaster, MomentForm::int8> {
  using Base = UpdatePass<L, kKind, kMaster, MomentForm::int8>;
  using O = typename Base::O;
  using Float = typename L::Float;
  using Bits = typename L::Bits;
  using Floats = typename O::Floats;
  using Words = typename O::Words;
  static constexpr uint32_t kSign = 0x8000'0000, kMagnitude = 0x7fff'ffff, kInfinity = 0x7f80'0000;
  static constexpr uint32_t kMomentumShift = arithmetic::kMomentumCode.shift;
  static constexpr uint32_t kRootShift = arithmetic::kRootCode.shift;

  // What decoding a block needs: where its codes count from, and what a byte of zero stands for (zero, or NaN where the
  // whole block is NaN: then all its bytes are zero).
  struct Scale {
    uint32_t base;
    uint32_t of_zero;
  };
  PENSTOCK_LANES Scale load_scale(const std::byte* scales, uint64_t block) {
    uint32_t bits;
    __builtin_memcpy(&bits, scales + block * 4, 4);
    return {bits - arithmetic::kByteExponents, (bits & kMagnitude) > kInfinity ? arithmetic::kQuietNan : 0};
  }

  PENSTOCK_LANES Floats load_momentum(const std::byte* source, Scale scale) {
    const Bits bytes = O::load8(source);
    Floats result;
    for (int k = 0; k < 4; ++k) {
      Bits top = bytes << (24 - 8 * k);
      Bits magnitude = top & L::bits(0x7f00'0000);
      Bits value = (magnitude >> (24 - kMomentumShift)) + L::bits(scale.base);
      value = L::select_bits(kSign, top, value);
      result.at[k] = L::as_float(L::if_set(magnitude, value, L::bits(scale.of_zero)));
    }
    return result;
  }
  PENSTOCK_LANES Floats load_root(const std::byte* source, Scale scale) {
    const Bits bytes = O::load8(source);
    Floats result;
    for (int k = 0; k < 4; ++k) {
      Bits code = bytes & L::bits(0xffu << (8 * k));
      Bits moved = 8 * k < static_cast<int>(kRootShift) ? code << (kRootShift - 8 * k) : code >> (8 * k - kRootShift);
      result.at[k] = L::as_float(L::if_set(code, moved + L::bits(scale.base), L::bits(scale.of_zero)));
    }
    return result;
  }

  struct Fresh {
    alignas(64) std::byte momentum[kMomentBlockElements * 4];
    alignas(64) std::byte root[kMomentBlockElements * 4];
    uint32_t largest_momentum, largest_root;
  };

  // Registers go to and from Fresh as they are, in whatever order their lanes are.
  PENSTOCK_LANES void put(std::byte* target, const Floats& x) {
    for (size_t k = 0; k < O::kRegisters; ++k) L::store(target + k * L::kWidth * 4, x.at[k]);
  }
  PENSTOCK_LANES Floats get(const std::byte* source) {
    Floats x;
    for (size_t k = 0; k < O::kRegisters; ++k) x.at[k] = L::load(source + k * L::kWidth * 4);
    return x;
  }

  PENSTOCK_LANES void update_block(const UpdateRun& run, const Coefficients& c, uint64_t first, Fresh& fresh) {
    const uint64_t block = first / kMomentBlockElements;
    Scale momentum_scale{}, root_scale{};
    if constexpr (Base::kHasMomentum) momentum_scale = load_scale(run.planes[Base::kMomentumScale].source, block);
    if constexpr (Base::kHasVariance) root_scale = load_scale(run.planes[Base::kVarianceScale].source, block);
    Bits largest_momentum = L::bits(0), largest_root = L::bits(0);
    for (uint64_t j = 0; j < kMomentBlockElements; j += O::kElements) {
      const uint64_t i = first + j;
      Base::prefetch(run, i);
      typename Base::Elements e;
      e.gradient = Base::load_gradient(run, i);
      e.weight = Base::load_weight(run, i);
      if constexpr (Base::kHasMomentum) {
        e.momentum = load_momentum(run.planes[Base::kMomentum].source + i, momentum_scale);
      }
      if constexpr (Base::kHasVariance) {
        e.variance = load_root(run.planes[Base::kVariance].source + i, root_scale);
        for (size_t k = 0; k < O::kRegisters; ++k) e.variance.at[k] = e.variance.at[k] * e.variance.at[k];
      }
      Base::step(run, c, e);
      Base::store_weight(run, i, e.weight);
      if constexpr (Base::kHasMomentum) {
        for (size_t k = 0; k < O::kRegisters; ++k) {
          largest_momentum = L::larger(largest_momentum, L::as_bits(e.momentum.at[k]) & L::bits(kMagnitude));
        }
        put(fresh.momentum + j * 4, e.momentum);
      }
      if constexpr (Base::kHasVariance) {
        // The step has taken these roots too: the compiler keeps them.
        for (size_t k = 0; k < O::kRegisters; ++k) {
          e.variance.at[k] = L::root(e.variance.at[k]);
          largest_root = L::larger(largest_root, L::as_bits(e.variance.at[k]));
        }
        put(fresh.root + j * 4, e.variance);
      }
    }
    fresh.largest_momentum = L::largest_of(largest_momentum);
    fresh.largest_root = L::largest_of(largest_root);
  }

  // arithmetic::byte_scale() in bits.
  PENSTOCK_LANES uint32_t scale_bits(uint32_t shift, uint32_t largest) {
    if (largest == 0) return 0;
    const uint32_t scale = (largest + (1u << shift) - 1u) & kInfinity;
    return scale == kInfinity ? arithmetic::kQuietNan : scale;
  }
  PENSTOCK_LANES uint32_t store_scale(std::byte* scales, uint64_t block, uint32_t scale) {
    __builtin_memcpy(scales + block * 4, &scale, 4);
    return scale;
  }
  PENSTOCK_LANES void store_zeros(std::byte* target) {
    for (uint64_t j = 0; j < kMomentBlockElements; j += L::kWidth * 4) L::store_bits(target + j, L::bits(0));
  }

  PENSTOCK_LANES void store_momentum(std::byte* target, const Floats& momentum, const Words& random, uint32_t base) {
    Words top;
    for (size_t k = 0; k < O::kRegisters; ++k) {
      Bits b = L::as_bits(momentum.at[k]);
      Bits code = (b & L::bits(kMagnitude)) - L::bits(base) + (random.at[k] >> (32 - kMomentumShift));
      code = L::larger(code, L::bits(0)) << (24 - kMomentumShift);
      top.at[k] = L::select_bits(kSign, b, code);
    }
    O::store_top8(target, top);
  }
  PENSTOCK_LANES void store_root(std::byte* target, const Floats& root, const Words& random, uint32_t base) {
    Words top;
    for (size_t k = 0; k < O::kRegisters; ++k) {
      Bits b = L::as_bits(root.at[k]);
      Bits code = b - L::bits(base) + (random.at[k] & L::bits((1u << kRootShift) - 1));
      code = L::if_set(b, L::larger(code, L::bits(1u << kRootShift)), L::bits(0));
      top.at[k] = code << (24 - kRootShift);
    }
    O::store_top8(target, top);
  }

  PENSTOCK_LANES void store_block(const UpdateRun& run, const Words& counters, uint64_t first, const Fresh& fresh) {
    const uint64_t block = first / kMomentBlockElements;
    uint32_t momentum_scale = 0, root_scale = 0;
    if constexpr (Base::kHasMomentum) {
      momentum_scale = store_scale(run.planes[Base::kMomentumScale].target, block,
                                   scale_bits(kMomentumShift, fresh.largest_momentum));
    }
    if constexpr (Base::kHasVariance) {
      root_scale =
          store_scale(run.planes[Base::kVarianceScale].target, block, scale_bits(kRootShift, fresh.largest_root));
    }
    for (uint64_t j = 0; j < kMomentBlockElements; j += O::kElements) {
      const Words random = Base::random_bits(run, counters, first + j);
      if constexpr (Base::kHasMomentum) {
        store_momentum(run.planes[Base::kMomentum].target + first + j, get(fresh.momentum + j * 4), random,
                       momentum_scale - arithmetic::kByteExponents);
      }
      if constexpr (Base::kHasVariance) {
        store_root(run.planes[Base::kVariance].target + first + j, get(fresh.root + j * 4), random,
                   root_scale - arithmetic::kByteExponents);
      }
    }
    // A block of zeros, and one of NaN, is bytes of zero.
    if constexpr (Base::kHasMomentum) {
      if (momentum_scale == 0 || momentum_scale == arithmetic::kQuietNan) [[unlikely]] {
        store_zeros(run.planes[Base::kMomentum].target + first);
      }
    }
    if constexpr (Base::kHasVariance) {
      if (root_scale == 0 || root_scale == arithmetic::kQuietNan) [[unlikely]] {
        store_zeros(run.planes[Base::kVariance].target + first);
      }
    }
  }

  static void run(const UpdateRun& run_in_memory, const Coefficients& coefficients_in_memory) {
    const UpdateRun run = run_in_memory;
    const Coefficients c = coefficients_in_memory;
    const Words counters = O::indices(arithmetic::kRandomStep);
    Fresh fresh;
    for (uint64_t first = 0; first < run.elements; first += kMomentBlockElements) {
      update_block(run, c, first, fresh);
      store_block(run, counters, first, fresh);
    }
  }
};

}  // namespace penstock::cpu_optim
