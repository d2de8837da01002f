// The optimizers, element by element: the definition that every kernel on every tier reproduces bit for bit.
//
// The formulas are written once, over a number system N. PlainNumbers is one float at a time: that is the definition.
// SIMD kernels supply batches of floats whose operations are the same, correctly rounded ones. Each * + - below is
// one IEEE fp32 operation, fused() is one with a single rounding, and nothing may be contracted or reordered.
//
//   g  the gradient     p  the master weight     m, v  the moments (momentum, variance)     c  coefficients
//
// No step depends on whether the hardware keeps denormals: moments below 2^-100, and weights and whatever is added to a
// weight or moment below 2^-119, count as zero, so that a denormal can neither enter, nor change a rounding, nor leave
// its sign on a zero. Beside moments of fewer bits the bound is 2^-63. Where a product or a quotient may be denormal
// all the same and matter to so small a weight, normal() makes it zero, as hardware does that flushes. On three
// conditions:
//   The hyper-parameters are what validate() (tiering/hyper.h) lets through.
//   gradient_scale is zero, or its magnitude at least 2^-100 and at most 2^7.
//   States that others wrote keep these bounds.
// (One coincidence is left: what rounds to 2^-126 from below may be zero to hardware that flushes, and is not to
// normal(). It takes a product within 2^-24 of that, relatively, and a weight that changes of 2^-126/eps can round, or
// beside moments in bytes changes of that times the step size: below 2^-50 at an eps of 1e-8 and an lr of 0.1.)
// Processors also differ in which NaN they pass on; here there is one.
#pragma once

#include <cmath>

#include "tiering/arithmetic/host_device.h"
#include "tiering/hyper.h"

namespace penstock::arithmetic {

// The exponent field of a number below it has five leading zeros: one bit test.
constexpr float kTermTiny = 0x1p-119f;
// g - m is never denormal if m is not below this and g not below kTermTiny.
constexpr float kMomentTiny = 0x1p-100f;
// For what belongs to moments of fewer bits: momenta, and the weights they change. Two leading zeros are the test.
constexpr float kLowBitTiny = 0x1p-63f;
// For the largest of a block of momenta, or roots, in bytes.
constexpr float kByteTiny = 0x1p-49f;
constexpr float kVarianceFloor = 0x1p-100f;
constexpr uint32_t kSignBit = 0x8000'0000u;
constexpr uint32_t kQuietNan = 0x7fc0'0000u;

struct PlainNumbers {
  using Float = float;

  PENSTOCK_HOST_DEVICE static float all(float value) { return value; }
  PENSTOCK_HOST_DEVICE static float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(a, b, c);
#else
    return std::fma(a, b, c);
#endif
  }
  PENSTOCK_HOST_DEVICE static float quotient(float a, float b) {
#if defined(__CUDA_ARCH__)
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
  }
  PENSTOCK_HOST_DEVICE static float root(float x) {
#if defined(__CUDA_ARCH__)
    return __fsqrt_rn(x);
#else
    return std::sqrt(x);
#endif
  }
  // Zero with x's sign where x is denormal. SIMD kernels, which run in a mode that flushes, have nothing to do.
  PENSTOCK_HOST_DEVICE static float normal(float x) {
#if defined(__CUDA_ARCH__)
    float result;
    asm("mul.ftz.f32 %0, %1, 0f3F800000;" : "=f"(result) : "f"(x));  // by one
    return result;
#else
    return flushed(x, 0x1p-126f);
#endif
  }
  // Zero with x's sign where |x| < tiny.
  PENSTOCK_HOST_DEVICE static float flushed(float x, float tiny) {
    return (bits_of(x) & ~kSignBit) < bits_of(tiny) ? float_of(bits_of(x) & kSignBit) : x;
  }
  // The same for x that is never negative.
  PENSTOCK_HOST_DEVICE static float flushed_positive(float x, float tiny) { return x < tiny ? 0.0f : x; }
  // +0 where |x| < tiny.
  PENSTOCK_HOST_DEVICE static float zero_below(float x, float tiny) {
    return (bits_of(x) & ~kSignBit) < bits_of(tiny) ? 0.0f : x;
  }
  PENSTOCK_HOST_DEVICE static float one_nan(float x) { return x != x ? float_of(kQuietNan) : x; }
  // `size` with x's sign; for zero -0, which leaves a weight of either zero as it is; NaN for NaN.
  PENSTOCK_HOST_DEVICE static float signed_like(float size, float x) {
    if (x != x) return x;
    return x > 0 ? size : x < 0 ? -size : -0.0f;
  }
};

// What counts of a weight, or of a number that is about to be added to one or to a moment.
template <class N>
PENSTOCK_HOST_DEVICE typename N::Float counted(typename N::Float x) {
  return N::flushed(x, kTermTiny);
}

// With the L2 term that adam, adagrad and sgd add.
template <class N>
PENSTOCK_HOST_DEVICE typename N::Float decayed_gradient(const Coefficients& c, typename N::Float g,
                                                        typename N::Float p) {
  return c.l2 == 0 ? g : counted<N>(N::fused(p, N::all(c.l2), g));
}

// How a step is computed from the moments. Those of fewer bits than fp32 have no peer to agree with, and less memory
// traffic to hide arithmetic behind.
enum class Moments {
  // fp32: p += step_size * m / (sqrt(v) / variance_correction + eps), to the bit of torch's fused kernels.
  divided,
  // bf16: p = p * decay + m / (sqrt(v) * root_coefficient + root_constant). v has a floor, so that what is added to it
  // is either nothing or no smaller than half its last bit: it need not be flushed.
  multiplied,
  // int8: as multiplied, with v the root itself before and after the step. Whoever stores the bytes makes a block below
  // kByteTiny zero, and in other blocks what is far below the largest: adam's momentum need not be flushed either.
  rooted,
};

// A gradient is multiplied once, by loss scale and clip factor. Bytes stand for small numbers times a power of two that
// their block shares (byte_moments.h). The first half of a step is handed gradient and small numbers as they are, and
// these: one product with a coefficient, where it can be, and not one for every element.
struct Scales {
  float gradient = 1;
  float momentum = 1;
  float root = 1;
};

PENSTOCK_HOST_DEVICE constexpr bool scales_coefficients(OptimizerKind kind, Moments moments) {
  return kind == OptimizerKind::adamw && moments != Moments::divided;
}

template <class N, Moments M>
PENSTOCK_HOST_DEVICE typename N::Float flushed_momentum(typename N::Float m) {
  return N::flushed(m, M == Moments::divided ? kMomentTiny : kLowBitTiny);
}

// v, of moments of fewer bits, after a step that keeps `kept` of the variance and adds the square of root_g.
template <class N, Moments M>
PENSTOCK_HOST_DEVICE typename N::Float next_variance(typename N::Float v, float kept, const Scales& scales,
                                                     typename N::Float root_g) {
  if constexpr (M == Moments::rooted) {
    kept *= scales.root * scales.root;
    return N::root(N::fused(root_g, root_g, N::fused(v * v, N::all(kept), N::all(kVarianceFloor))));
  } else {
    return N::fused(root_g, root_g, N::fused(v, N::all(kept), N::all(kVarianceFloor)));
  }
}

template <class N, Moments M>
PENSTOCK_HOST_DEVICE void adam_moments(const Coefficients& c, const Scales& scales, typename N::Float g,
                                       typename N::Float& m, typename N::Float& v) {
  if constexpr (M == Moments::divided) {
    m = flushed_momentum<N, M>(N::fused(N::all(c.momentum_coefficient), g - m, c.momentum_from_gradient ? g : m));
    v = N::flushed_positive(N::fused(N::all(c.beta2_rest) * g, g, v * N::all(c.beta2)), kMomentTiny);
  } else {
    m = N::fused(g, N::all(c.beta1_rest * scales.gradient), m * N::all(c.beta1 * scales.momentum));
    if constexpr (M == Moments::multiplied) m = N::zero_below(m, kLowBitTiny);
    if constexpr (M == Moments::rooted) m = N::normal(m);
    v = next_variance<N, M>(v, c.beta2, scales, g * N::all(c.beta2_rest_root * scales.gradient));
  }
}

// Beside moments of fewer bits the weight decays while the quotient is added.
template <class N, Moments M>
PENSTOCK_HOST_DEVICE void adam_weight(const Coefficients& c, typename N::Float& p, typename N::Float m,
                                      typename N::Float v) {
  if constexpr (M == Moments::divided) {
    typename N::Float denominator = N::quotient(N::root(v), N::all(c.variance_correction)) + N::all(c.eps);
    p = counted<N>(p + counted<N>(N::quotient(N::normal(N::all(c.step_size) * m), denominator)));
  } else {
    typename N::Float root = M == Moments::rooted ? v : N::root(v);
    typename N::Float denominator = N::fused(root, N::all(c.root_coefficient), N::all(c.root_constant));
    p = N::zero_below(N::fused(p, N::all(c.decay), N::normal(N::quotient(m, denominator))), kLowBitTiny);
  }
}

template <class N, Moments M>
PENSTOCK_HOST_DEVICE void adagrad_moment(const Scales& scales, typename N::Float g, typename N::Float& v) {
  if constexpr (M == Moments::divided) {
    v = N::flushed_positive(N::fused(g, g, v), kMomentTiny);
  } else {
    v = next_variance<N, M>(v, 1, scales, g);
  }
}

template <class N, Moments M>
PENSTOCK_HOST_DEVICE void adagrad_weight(const Coefficients& c, typename N::Float g, typename N::Float& p,
                                         typename N::Float v) {
  typename N::Float root = M == Moments::rooted ? v : N::root(v);
  p = counted<N>(p + counted<N>(N::quotient(counted<N>(N::all(c.step_size) * g), root + N::all(c.eps))));
}

template <class N, Moments M>
PENSTOCK_HOST_DEVICE void lion(const Coefficients& c, const Scales& scales, typename N::Float g, typename N::Float& p,
                               typename N::Float& m) {
  typename N::Float direction = N::fused(g, N::all(c.beta1_rest), m * N::all(c.beta1 * scales.momentum));
  p = counted<N>(N::normal(p * N::all(c.decay)) + N::signed_like(c.step_size, counted<N>(direction)));
  m = flushed_momentum<N, M>(N::fused(g, N::all(c.beta2_rest), m * N::all(c.beta2 * scales.momentum)));
}

template <class N, Moments M>
PENSTOCK_HOST_DEVICE void sgd(const Coefficients& c, const Scales& scales, typename N::Float g, typename N::Float& p,
                              typename N::Float& m) {
  if (c.momentum == 0) {  // the rates' may have been another before, and be so again: what there is of it stays
    m = flushed_momentum<N, M>(m * N::all(scales.momentum));
    p = counted<N>(N::fused(g, N::all(c.step_size), p));
    return;
  }
  typename N::Float kept = m * N::all(c.momentum * scales.momentum);
  m = flushed_momentum<N, M>(c.first_step ? g : N::fused(g, N::all(c.dampening_rest), kept));
  typename N::Float direction = c.nesterov ? counted<N>(N::fused(m, N::all(c.momentum), g)) : m;
  p = counted<N>(N::fused(direction, N::all(c.step_size), p));
}

// The step of any optimizer, but for NaNs, in two halves: all that does not wait for a quotient, and the rest. A SIMD
// kernel has other elements' first half to do while these elements' roots are taken. m or v is left alone where the
// optimizer has none.
template <class N, OptimizerKind kind, Moments M>
PENSTOCK_HOST_DEVICE void optimizer_moments(const Coefficients& c, Scales scales, typename N::Float& g,
                                            typename N::Float& p, typename N::Float& m, typename N::Float& v) {
  if constexpr (scales_coefficients(kind, M)) {
    g = N::normal(g);  // else a tiny one might leave its sign on a zero
  } else {
    g = counted<N>(g * N::all(scales.gradient));
    scales.gradient = 1;
  }
  if constexpr (kind == OptimizerKind::adamw && M == Moments::divided) p = N::normal(p * N::all(c.decay));
  if constexpr (kind == OptimizerKind::adam || kind == OptimizerKind::adagrad || kind == OptimizerKind::sgd) {
    g = decayed_gradient<N>(c, g, p);
  }
  if constexpr (kind == OptimizerKind::adamw || kind == OptimizerKind::adam) adam_moments<N, M>(c, scales, g, m, v);
  if constexpr (kind == OptimizerKind::adagrad) adagrad_moment<N, M>(scales, g, v);
  if constexpr (kind == OptimizerKind::lion) lion<N, M>(c, scales, g, p, m);
  if constexpr (kind == OptimizerKind::sgd) sgd<N, M>(c, scales, g, p, m);
}
template <class N, OptimizerKind kind, Moments M>
PENSTOCK_HOST_DEVICE void optimizer_weight(const Coefficients& c, typename N::Float g, typename N::Float& p,
                                           typename N::Float m, typename N::Float v) {
  if constexpr (kind == OptimizerKind::adamw || kind == OptimizerKind::adam) adam_weight<N, M>(c, p, m, v);
  if constexpr (kind == OptimizerKind::adagrad) adagrad_weight<N, M>(c, g, p, v);
}

// The whole step. A NaN in a moment makes p one too (but for lion's with beta2 = 0, and sgd's that rests), so that p
// shows where to look.
template <class N, OptimizerKind kind, Moments M>
PENSTOCK_HOST_DEVICE void optimizer_step(const Coefficients& c, const Scales& scales, typename N::Float g,
                                         typename N::Float& p, typename N::Float& m, typename N::Float& v) {
  optimizer_moments<N, kind, M>(c, scales, g, p, m, v);
  optimizer_weight<N, kind, M>(c, g, p, m, v);
  p = N::one_nan(p);
  if constexpr (has_momentum(kind)) m = N::one_nan(m);
  if constexpr (has_variance(kind)) v = N::one_nan(v);
}

}  // namespace penstock::arithmetic
