// The pass over a run of elements, written once over Lanes: load, step, store. Two registers' worth of elements go
// together, because 2*kWidth 16-bit numbers fill one register.
#pragma once

#include "cpu_optim/kernels.h"
#include "cpu_optim/lanes/inlined.h"
#include "tiering/arithmetic/byte_moments.h"
#include "tiering/arithmetic/optimizer.h"

namespace penstock::cpu_optim {

template <class L, OptimizerKind kKind, MasterForm kMaster, MomentForm kMoments>
struct UpdatePass {
  using Float = typename L::Float;
  using Bits = typename L::Bits;

  static constexpr bool kHasMomentum = arithmetic::has_momentum(kKind);
  static constexpr bool kHasVariance = arithmetic::has_variance(kKind);
  static constexpr uint64_t kPair = 2 * L::kWidth;
  static constexpr auto kDenominator =
      kMoments == MomentForm::fp32 ? arithmetic::Denominator::divided : arithmetic::Denominator::multiplied;

  // Places among the planes: the weight, then as resting_planes() orders them.
  static constexpr size_t kWeight = 0;
  static constexpr size_t kOwnMaster = 1;  // all of it or its low half
  static constexpr size_t kMomentum = kMaster == MasterForm::same ? 1 : 2;
  static constexpr size_t kVariance = kMomentum + (kHasMomentum ? 1 : 0);
  static constexpr size_t kMomentumScale = kVariance + (kHasVariance ? 1 : 0);
  static constexpr size_t kVarianceScale = kMomentumScale + (kHasMomentum ? 1 : 0);
  static constexpr uint64_t kMomentBytes = kMoments == MomentForm::fp32 ? 4 : kMoments == MomentForm::bf16 ? 2 : 1;

  struct Elements {
    Float gradient[2], weight[2], momentum[2], variance[2];
  };

  // Asks for the lines that the pair `ahead` elements from i needs; past the end of a plane it does no harm.
  PENSTOCK_LANES void prefetch(const UpdateRun& run, uint64_t i) {
    const uint64_t ahead = i + run.prefetch_elements;
    prefetch_plane(run.gradient + ahead * bytes_of(run.gradient_dtype), kPair * 2);
    if constexpr (kMaster == MasterForm::same) prefetch_plane(run.planes[kWeight].source + ahead * 4, kPair * 4);
    if constexpr (kMaster == MasterForm::full) prefetch_plane(run.planes[kOwnMaster].source + ahead * 4, kPair * 4);
    if constexpr (kMaster == MasterForm::split) {
      prefetch_plane(run.planes[kWeight].source + ahead * 2, kPair * 2);
      prefetch_plane(run.planes[kOwnMaster].source + ahead * 2, kPair * 2);
    }
    if constexpr (kHasMomentum)
      prefetch_plane(run.planes[kMomentum].source + ahead * kMomentBytes, kPair * kMomentBytes);
    if constexpr (kHasVariance)
      prefetch_plane(run.planes[kVariance].source + ahead * kMomentBytes, kPair * kMomentBytes);
  }
  PENSTOCK_LANES void prefetch_plane(const std::byte* address, uint64_t bytes) {
    L::prefetch(address);
    if (bytes > 64) L::prefetch(address + 64);
  }

  PENSTOCK_LANES Float load_gradient(const UpdateRun& run, uint64_t i) {
    switch (run.gradient_dtype) {
      case Dtype::fp32:
        return L::load(run.gradient + i * 4);
      case Dtype::bf16:
        return L::as_float(L::load16(run.gradient + i * 2) << 16);
      default:
        return L::load_fp16(run.gradient + i * 2);
    }
  }

  PENSTOCK_LANES Float load_weight(const UpdateRun& run, uint64_t i) {
    if constexpr (kMaster == MasterForm::same) return L::load(run.planes[kWeight].source + i * 4);
    if constexpr (kMaster == MasterForm::full) return L::load(run.planes[kOwnMaster].source + i * 4);
    if constexpr (kMaster == MasterForm::split) {
      // The rounding of the high half carried exactly where the low half's top bit is set.
      Bits high = L::load16(run.planes[kWeight].source + i * 2), low = L::load16(run.planes[kOwnMaster].source + i * 2);
      return L::as_float((high << 16) + low - ((low & L::bits(0x8000)) << 1));
    }
  }

  PENSTOCK_LANES void store_weights(const UpdateRun& run, uint64_t i, const Float (&p)[2]) {
    if constexpr (kMaster == MasterForm::same) {
      for (int k = 0; k < 2; ++k) L::store(run.planes[kWeight].target + (i + k * L::kWidth) * 4, p[k]);
      return;
    }
    Bits halves[2];
    if constexpr (kMaster == MasterForm::full) {
      for (int k = 0; k < 2; ++k) {
        L::store(run.planes[kOwnMaster].target + (i + k * L::kWidth) * 4, p[k]);
        halves[k] = run.weight_dtype == Dtype::bf16 ? L::bf16_of(p[k]) : L::fp16_of(p[k]);
      }
    }
    if constexpr (kMaster == MasterForm::split) {
      Bits low[2];
      for (int k = 0; k < 2; ++k) {
        // Half away from zero. settled() has left the one NaN only, whose low half is zero.
        low[k] = L::as_bits(p[k]) & L::bits(0xffff);
        halves[k] = (L::as_bits(p[k]) + L::bits(0x8000)) >> 16;
      }
      L::store16(run.planes[kOwnMaster].target + i * 2, low[0], low[1]);
    }
    if (run.stream_weight) {
      L::stream16(run.planes[kWeight].target + i * 2, halves[0], halves[1]);
    } else {
      L::store16(run.planes[kWeight].target + i * 2, halves[0], halves[1]);
    }
  }

  // The 32 bits of each element: the low half for its momentum, the high half for its variance.
  PENSTOCK_LANES Bits random_bits(const UpdateRun& run, uint64_t i) {
    Bits x = L::ramp() + L::bits(run.random_index + run.random_key + static_cast<uint32_t>(i));
    x = x ^ (x >> 16);
    x = L::multiply(x, L::bits(0x7feb'352d));
    x = x ^ (x >> 15);
    x = L::multiply(x, L::bits(0x846c'a68b));
    return x ^ (x >> 16);
  }

  PENSTOCK_LANES Bits bf16_stochastic(Float x, Bits random16) {
    Bits b = L::as_bits(x);
    return L::where_finite(b, b + random16, b) >> 16;
  }

  PENSTOCK_LANES void step(const UpdateRun& run, const Coefficients& c, Elements& e) {
    for (int k = 0; k < 2; ++k) {
      Float g = arithmetic::scaled_gradient<L>(e.gradient[k], run.gradient_scale);
      arithmetic::optimizer_step<L, kKind, kDenominator>(c, g, e.weight[k], e.momentum[k], e.variance[k]);
    }
  }

  PENSTOCK_LANES Float load_moment(const std::byte* plane, uint64_t i) {
    if constexpr (kMoments == MomentForm::fp32) return L::load(plane + i * 4);
    return L::as_float(L::load16(plane + i * 2) << 16);
  }
  PENSTOCK_LANES void store_moments(std::byte* plane, uint64_t i, const Float (&x)[2], const Bits (&random)[2]) {
    if constexpr (kMoments == MomentForm::fp32) {
      for (int k = 0; k < 2; ++k) L::store(plane + (i + k * L::kWidth) * 4, x[k]);
    } else {
      L::store16(plane + i * 2, bf16_stochastic(x[0], random[0]), bf16_stochastic(x[1], random[1]));
    }
  }

  // fp32 and bf16 moments.
  static void run(const UpdateRun& run, const Coefficients& coefficients) {
    const Coefficients c = coefficients;
    for (uint64_t i = 0; i < run.elements; i += kPair) {
      prefetch(run, i);
      Elements e;
      for (int k = 0; k < 2; ++k) {
        const uint64_t at = i + k * L::kWidth;
        e.gradient[k] = load_gradient(run, at);
        e.weight[k] = load_weight(run, at);
        if constexpr (kHasMomentum) e.momentum[k] = load_moment(run.planes[kMomentum].source, at);
        if constexpr (kHasVariance) e.variance[k] = load_moment(run.planes[kVariance].source, at);
      }
      step(run, c, e);
      store_weights(run, i, e.weight);
      Bits for_momentum[2], for_variance[2];
      if constexpr (kMoments == MomentForm::bf16) {
        for (int k = 0; k < 2; ++k) {
          Bits random = random_bits(run, i + k * L::kWidth);
          for_momentum[k] = random & L::bits(0xffff);
          for_variance[k] = random >> 16;
        }
      }
      if constexpr (kHasMomentum) store_moments(run.planes[kMomentum].target, i, e.momentum, for_momentum);
      if constexpr (kHasVariance) store_moments(run.planes[kVariance].target, i, e.variance, for_variance);
    }
  }
};

// Moments in bytes. A block's scale is known only when all of it has been updated, so it is updated into memory that
// stays in the first cache, and coded from there.
template <class L, OptimizerKind kKind, MasterForm kMaster>
struct ByteUpdatePass : UpdatePass<L, kKind, kMaster, MomentForm::int8> {
  using Base = UpdatePass<L, kKind, kMaster, MomentForm::int8>;
  using Float = typename L::Float;
  using Bits = typename L::Bits;

  // What decoding a block's bytes needs: where codes count from, and a NaN to mix in if the block is one.
  struct Scale {
    uint32_t base;
    uint32_t poison;
  };
  PENSTOCK_LANES Scale load_scale(const std::byte* scales, uint64_t block) {
    uint32_t bits;
    __builtin_memcpy(&bits, scales + block * 4, 4);
    return {bits - arithmetic::kByteExponents, (bits & 0x7fff'ffff) > 0x7f80'0000 ? arithmetic::kQuietNan : 0};
  }

  PENSTOCK_LANES Float load_momentum(const std::byte* bytes, uint64_t i, Scale scale) {
    Bits byte = L::load8(bytes + i);
    Bits magnitude = byte & L::bits(arithmetic::kMomentumCode.magnitude_mask);
    Bits value = (magnitude << arithmetic::kMomentumCode.shift) + L::bits(scale.base);
    value = L::where_set(magnitude, value | ((byte & L::bits(0x80)) << 24));
    return L::as_float(value | L::bits(scale.poison));
  }
  PENSTOCK_LANES Float load_root(const std::byte* bytes, uint64_t i, Scale scale) {
    Bits byte = L::load8(bytes + i);
    Bits value = L::where_set(byte, (byte << arithmetic::kRootCode.shift) + L::bits(scale.base));
    return L::as_float(value | L::bits(scale.poison));
  }

  // One scale for a block whose largest magnitude is known; arithmetic::byte_scale() in this file's own words.
  PENSTOCK_LANES uint32_t scale_bits(arithmetic::ByteCode code, uint32_t largest) {
    if (largest == 0) return 0;
    uint32_t scale = (largest + (1u << code.shift) - 1u) & 0x7f80'0000u;
    return scale == 0x7f80'0000u ? arithmetic::kQuietNan : scale;
  }

  template <arithmetic::ByteCode kCode>
  PENSTOCK_LANES Bits code_of(Bits magnitude, Bits base, Bits random16) {
    Bits above = L::larger(magnitude, base) - base;
    return (above + (random16 << kCode.random_shift)) >> kCode.shift;
  }

  struct Fresh {
    alignas(64) float momentum[kMomentBlockElements];
    alignas(64) float root[kMomentBlockElements];
    uint32_t largest_momentum, largest_root;
  };

  PENSTOCK_LANES void update_block(const UpdateRun& run, const Coefficients& c, uint64_t first, Fresh& fresh) {
    const uint64_t block = first / kMomentBlockElements;
    Scale momentum_scale{}, root_scale{};
    if constexpr (Base::kHasMomentum) momentum_scale = load_scale(run.planes[Base::kMomentumScale].source, block);
    if constexpr (Base::kHasVariance) root_scale = load_scale(run.planes[Base::kVarianceScale].source, block);
    Bits largest_momentum = L::bits(0), largest_root = L::bits(0);
    for (uint64_t j = 0; j < kMomentBlockElements; j += Base::kPair) {
      const uint64_t i = first + j;
      Base::prefetch(run, i);
      typename Base::Elements e;
      for (int k = 0; k < 2; ++k) {
        const uint64_t at = i + k * L::kWidth;
        e.gradient[k] = Base::load_gradient(run, at);
        e.weight[k] = Base::load_weight(run, at);
        if constexpr (Base::kHasMomentum) {
          e.momentum[k] = load_momentum(run.planes[Base::kMomentum].source, at, momentum_scale);
        }
        if constexpr (Base::kHasVariance) {
          Float root = load_root(run.planes[Base::kVariance].source, at, root_scale);
          e.variance[k] = root * root;
        }
      }
      Base::step(run, c, e);
      Base::store_weights(run, i, e.weight);
      for (int k = 0; k < 2; ++k) {
        if constexpr (Base::kHasMomentum) {
          L::store(fresh.momentum + j + k * L::kWidth, e.momentum[k]);
          largest_momentum = L::larger(largest_momentum, L::as_bits(e.momentum[k]) & L::bits(0x7fff'ffff));
        }
        if constexpr (Base::kHasVariance) {
          // The step has taken this root too: the compiler keeps it.
          Float root = L::root(e.variance[k]);
          L::store(fresh.root + j + k * L::kWidth, root);
          largest_root = L::larger(largest_root, L::as_bits(root) & L::bits(0x7fff'ffff));
        }
      }
    }
    fresh.largest_momentum = L::largest_of(largest_momentum);
    fresh.largest_root = L::largest_of(largest_root);
  }

  // A block of zeros and a block of NaN are coded as zeros.
  PENSTOCK_LANES bool is_coded(uint32_t scale) { return scale != 0 && scale != arithmetic::kQuietNan; }

  PENSTOCK_LANES void store_block(const UpdateRun& run, uint64_t first, const Fresh& fresh) {
    const uint64_t block = first / kMomentBlockElements;
    uint32_t momentum_scale = 0, root_scale = 0;
    if constexpr (Base::kHasMomentum) {
      momentum_scale = scale_bits(arithmetic::kMomentumCode, fresh.largest_momentum);
      __builtin_memcpy(run.planes[Base::kMomentumScale].target + block * 4, &momentum_scale, 4);
    }
    if constexpr (Base::kHasVariance) {
      root_scale = scale_bits(arithmetic::kRootCode, fresh.largest_root);
      __builtin_memcpy(run.planes[Base::kVarianceScale].target + block * 4, &root_scale, 4);
    }
    const uint32_t momentum_mask = is_coded(momentum_scale) ? 0xff : 0, root_mask = is_coded(root_scale) ? 0xff : 0;
    const Bits momentum_base = L::bits(is_coded(momentum_scale) ? momentum_scale - arithmetic::kByteExponents : 0);
    const Bits root_base = L::bits(is_coded(root_scale) ? root_scale - arithmetic::kByteExponents : 0);
    for (uint64_t j = 0; j < kMomentBlockElements; j += L::kWidth) {
      const Bits random = Base::random_bits(run, first + j);
      if constexpr (Base::kHasMomentum) {
        Bits b = L::as_bits(L::load(fresh.momentum + j));
        Bits code =
            code_of<arithmetic::kMomentumCode>(b & L::bits(0x7fff'ffff), momentum_base, random & L::bits(0xffff));
        code = (code | ((b >> 24) & L::bits(0x80))) & L::bits(momentum_mask);
        L::store8(run.planes[Base::kMomentum].target + first + j, code);
      }
      if constexpr (Base::kHasVariance) {
        Bits b = L::as_bits(L::load(fresh.root + j));
        Bits code = code_of<arithmetic::kRootCode>(b, root_base, random >> 16);
        code = L::where_set(b, L::larger(code, L::bits(1))) & L::bits(root_mask);
        L::store8(run.planes[Base::kVariance].target + first + j, code);
      }
    }
  }

  static void run(const UpdateRun& run, const Coefficients& coefficients) {
    const Coefficients c = coefficients;
    Fresh fresh;
    for (uint64_t first = 0; first < run.elements; first += kMomentBlockElements) {
      update_block(run, c, first, fresh);
      store_block(run, first, fresh);
    }
  }
};

}  // namespace penstock::cpu_optim
