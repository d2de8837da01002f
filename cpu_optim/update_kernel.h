// The pass over a part of a tile, written once over Lanes: load, step, store.
#pragma once

#include "cpu_optim/kernels.h"
#include "cpu_optim/lanes/inlined.h"
#include "cpu_optim/lanes/order.h"
#include "tiering/arithmetic/optimizer.h"
#include "tiering/arithmetic/stochastic.h"

namespace penstock::cpu_optim {

// What kernels of all moment forms share.
template <class L, OptimizerKind kKind, MasterForm kMaster, MomentForm kMoments>
struct UpdatePass {
  static constexpr Order kOrder = kMoments == MomentForm::fp32 ? Order::runs : Order::pairs;
  using O = Ordered<L, kOrder>;
  using Float = typename L::Float;
  using Bits = typename L::Bits;
  using Floats = typename O::Floats;
  using Words = typename O::Words;
  static constexpr size_t kRegisters = O::kRegisters;

  static constexpr bool kHasMomentum = has_momentum(kKind);
  static constexpr bool kHasVariance = has_variance(kKind);
  static constexpr auto kArithmetic = kMoments == MomentForm::fp32   ? arithmetic::Moments::divided
                                      : kMoments == MomentForm::bf16 ? arithmetic::Moments::multiplied
                                                                     : arithmetic::Moments::rooted;

  // Places among the planes: the weight, then as resting_planes() orders them.
  static constexpr size_t kWeight = 0;
  static constexpr size_t kOwnMaster = 1;  // all of it or its low half
  static constexpr size_t kMomentum = kMaster == MasterForm::same ? 1 : 2;
  static constexpr size_t kVariance = kMomentum + (kHasMomentum ? 1 : 0);
  static constexpr size_t kMomentumScale = kVariance + (kHasVariance ? 1 : 0);
  static constexpr size_t kVarianceScale = kMomentumScale + (kHasMomentum ? 1 : 0);
  static constexpr uint64_t kMomentBytes = kMoments == MomentForm::fp32 ? 4 : kMoments == MomentForm::bf16 ? 2 : 1;

  struct Elements {
    Floats gradient, weight, momentum, variance;
  };

  template <uint64_t kElements>
  PENSTOCK_LANES void prefetch(const std::byte* plane, uint64_t element, uint64_t element_bytes) {
    const std::byte* first = plane + element * element_bytes;
    for (uint64_t byte = 0; byte < kElements * element_bytes; byte += 64) L::prefetch(first + byte);
  }
  // Prefetches the lines of the kElements elements that begin `prefetch_elements` after i. Harmless past the end of a
  // plane.
  template <uint64_t kElements>
  PENSTOCK_LANES void prefetch(const TilePart& run, uint64_t i) {
    const uint64_t ahead = i + run.prefetch_elements;
    prefetch<kElements>(run.gradient, ahead, run.gradient_dtype == Dtype::fp32 ? 4 : 2);
    if constexpr (kMaster == MasterForm::same) prefetch<kElements>(run.planes[kWeight].source, ahead, 4);
    if constexpr (kMaster == MasterForm::full) prefetch<kElements>(run.planes[kOwnMaster].source, ahead, 4);
    if constexpr (kMaster == MasterForm::split) {
      prefetch<kElements>(run.planes[kWeight].source, ahead, 2);
      prefetch<kElements>(run.planes[kOwnMaster].source, ahead, 2);
    }
    if constexpr (kHasMomentum) prefetch<kElements>(run.planes[kMomentum].source, ahead, kMomentBytes);
    if constexpr (kHasVariance) prefetch<kElements>(run.planes[kVariance].source, ahead, kMomentBytes);
  }

  PENSTOCK_LANES Floats as_floats(const Words& x) {
    Floats result;
    for (size_t k = 0; k < kRegisters; ++k) result.at[k] = L::as_float(x.at[k]);
    return result;
  }

  PENSTOCK_LANES Floats load_gradient(const TilePart& run, uint64_t i) {
    switch (run.gradient_dtype) {
      case Dtype::fp32:
        return O::load32(run.gradient + i * 4);
      case Dtype::bf16:
        return as_floats(O::load16(run.gradient + i * 2));
      default:
        return O::load_fp16(run.gradient + i * 2);
    }
  }

  PENSTOCK_LANES Floats load_weight(const TilePart& run, uint64_t i) {
    if constexpr (kMaster == MasterForm::same) return O::load32(run.planes[kWeight].source + i * 4);
    if constexpr (kMaster == MasterForm::full) return O::load32(run.planes[kOwnMaster].source + i * 4);
    if constexpr (kMaster == MasterForm::split) {
      return as_floats(O::load_split(run.planes[kWeight].source + i * 2, run.planes[kOwnMaster].source + i * 2));
    }
  }

  // REQUIRES: a NaN is the one NaN, so that no rounding here can make it infinite.
  PENSTOCK_LANES void store_weight(const TilePart& run, uint64_t i, const Floats& p) {
    if constexpr (kMaster == MasterForm::same) {
      O::store32(run.planes[kWeight].target + i * 4, p);
      return;
    }
    const Past past = run.stream_weight ? Past::past_caches : Past::through_caches;
    std::byte* weight = run.planes[kWeight].target + i * 2;
    Words halves;
    if constexpr (kMaster == MasterForm::split) {
      for (size_t k = 0; k < kRegisters; ++k) halves.at[k] = L::as_bits(p.at[k]);
      O::store_split(weight, run.planes[kOwnMaster].target + i * 2, halves, past);
    }
    if constexpr (kMaster == MasterForm::full) {
      O::store32(run.planes[kOwnMaster].target + i * 4, p);
      if (run.weight_dtype == Dtype::bf16) {
        for (size_t k = 0; k < kRegisters; ++k) {
          Bits b = L::as_bits(p.at[k]);
          halves.at[k] = b + L::bits(0x7fff) + ((b >> 16) & L::bits(1));
        }
        O::store_upper16(weight, halves, past);
      } else {
        for (size_t k = 0; k < kRegisters; ++k) halves.at[k] = L::fp16_of(p.at[k]);
        O::store_lower16(weight, halves, past);
      }
    }
  }

  // The random bits of the elements from i on. `counters` is O::indices(arithmetic::kRandomStep).
  PENSTOCK_LANES Words random_bits(const TilePart& run, const Words& counters, uint64_t i) {
    return random_words(counters, run.random_index + run.random_key + static_cast<uint32_t>(i));
  }
  PENSTOCK_LANES Words random_words(const Words& counters, uint32_t index) {
    const Bits base = L::bits(index * arithmetic::kRandomStep);
    Words random;
    for (size_t k = 0; k < kRegisters; ++k) {
      Bits x = base + counters.at[k];
      random.at[k] = L::multiply(x ^ (x >> 15), L::bits(arithmetic::kRandomFactor));
    }
    return random;
  }

  PENSTOCK_LANES void step_moments(const Coefficients& c, const arithmetic::Scales& scales, Elements& e) {
    for (size_t k = 0; k < kRegisters; ++k) {
      arithmetic::optimizer_moments<L, kKind, kArithmetic>(c, scales, e.gradient.at[k], e.weight.at[k],
                                                           e.momentum.at[k], e.variance.at[k]);
    }
  }
  PENSTOCK_LANES void step_weight(const Coefficients& c, Elements& e) {
    for (size_t k = 0; k < kRegisters; ++k) {
      arithmetic::optimizer_weight<L, kKind, kArithmetic>(c, e.gradient.at[k], e.weight.at[k], e.momentum.at[k],
                                                          e.variance.at[k]);
    }
  }
  // Whether some weight is a NaN, or a momentum that the weight does not show.
  PENSTOCK_LANES bool any_nan(const Elements& e) {
    bool has_nan = L::any_nan(e.weight.at[0], e.weight.at[1]);
    if constexpr (kKind == OptimizerKind::lion || kKind == OptimizerKind::sgd) {
      has_nan = has_nan || L::any_nan(e.momentum.at[0], e.momentum.at[1]);
    }
    return has_nan;
  }
  // The whole step.
  PENSTOCK_LANES void step(const TilePart& run, const Coefficients& c, Elements& e) {
    step_moments(c, {run.gradient_scale, 1, 1}, e);
    step_weight(c, e);
    if (!any_nan(e)) [[likely]]
      return;
    for (size_t k = 0; k < kRegisters; ++k) {
      e.weight.at[k] = L::one_nan(e.weight.at[k]);
      if constexpr (kHasMomentum) e.momentum.at[k] = L::one_nan(e.momentum.at[k]);
      if constexpr (kHasVariance) e.variance.at[k] = L::one_nan(e.variance.at[k]);
    }
  }
};

// fp32 moments, and bf16 ones, which are rounded stochastically. That keeps infinity and the one NaN, the only ones
// left after a step: bits added below the cut do not carry out of their lower halves of zeros.
template <class L, OptimizerKind kKind, MasterForm kMaster, MomentForm kMoments>
struct WordUpdatePass : UpdatePass<L, kKind, kMaster, kMoments> {
  using Base = UpdatePass<L, kKind, kMaster, kMoments>;
  using O = typename Base::O;
  using Float = typename L::Float;
  using Floats = typename O::Floats;
  using Words = typename O::Words;
  static constexpr bool kIsRounded = kMoments == MomentForm::bf16;

  PENSTOCK_LANES Floats load_moment(const std::byte* plane, uint64_t i) {
    if constexpr (kIsRounded) return Base::as_floats(O::load16(plane + i * 2));
    return O::load32(plane + i * 4);
  }
  PENSTOCK_LANES void store_moment(std::byte* plane, uint64_t i, const Floats& x, const Words& random16) {
    if constexpr (kIsRounded) {
      Words sums;
      for (size_t k = 0; k < O::kRegisters; ++k) sums.at[k] = L::as_bits(x.at[k]) + random16.at[k];
      O::store_upper16(plane + i * 2, sums);
    } else {
      O::store32(plane + i * 4, x);
    }
  }

  static void run(const TilePart& run_in_memory, const Coefficients& coefficients_in_memory) {
    // Copies, because otherwise the compiler must assume that writing a plane may change them.
    const TilePart run = run_in_memory;
    const Coefficients c = coefficients_in_memory;
    const Words counters = O::indices(arithmetic::kRandomStep);
    for (uint64_t i = 0; i < run.elements; i += O::kElements) {
      Base::template prefetch<O::kElements>(run, i);
      typename Base::Elements e;
      e.gradient = Base::load_gradient(run, i);
      e.weight = Base::load_weight(run, i);
      if constexpr (Base::kHasMomentum) e.momentum = load_moment(run.planes[Base::kMomentum].source, i);
      if constexpr (Base::kHasVariance) e.variance = load_moment(run.planes[Base::kVariance].source, i);
      Base::step(run, c, e);
      Base::store_weight(run, i, e.weight);
      Words for_momentum, for_variance;
      if constexpr (kIsRounded) {
        const Words random = Base::random_bits(run, counters, i);
        for (size_t k = 0; k < O::kRegisters; ++k) {
          for_momentum.at[k] = random.at[k] & L::bits(0xffff);
          for_variance.at[k] = random.at[k] >> 16;
        }
      }
      if constexpr (Base::kHasMomentum) store_moment(run.planes[Base::kMomentum].target, i, e.momentum, for_momentum);
      if constexpr (Base::kHasVariance) store_moment(run.planes[Base::kVariance].target, i, e.variance, for_variance);
    }
  }
};

}  // namespace penstock::cpu_optim
