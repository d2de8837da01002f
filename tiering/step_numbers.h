// The numbers that one optimizer step's kernels use, the same on the CPU and on a device.
//
// Coefficients are computed in double, once per parameter group and step, and rounded once to fp32. Kernels see nothing
// else, so equal StepNumbers mean equal results.
#pragma once

#include <cstdint>

namespace penstock {

// `g` is the scaled gradient and `p` the master weight.
struct Coefficients {
  float decay = 1;                      // 1 - lr*weight_decay: p shrinks by it (decoupled)
  float l2 = 0;                         // weight_decay: p*l2 joins the gradient
  float momentum_coefficient = 0;       // of (g - m); 1 - beta1, or -beta1 when the base is g (see below)
  bool momentum_from_gradient = false;  // torch's lerp starts from the nearer end: from g where 1 - beta1 >= 0.5
  float beta1 = 0;
  float beta1_rest = 0;  // 1 - beta1
  float beta2 = 0;
  float beta2_rest = 0;                   // 1 - beta2
  float variance_correction = 1;          // sqrt(1 - beta2^step)
  float variance_correction_inverse = 1;  // its reciprocal, rounded once
  float eps = 0;
  float step_size = 0;       // adamw, adam: -lr / (1 - beta1^step); adagrad, lion, sgd: -lr
  float momentum = 0;        // sgd
  float dampening_rest = 1;  // sgd: 1 - dampening; on the first step the momentum is g itself
  bool nesterov = false;
  bool first_step = false;
};

struct StepNumbers {
  Coefficients coefficients;
  // Every gradient is multiplied by it once, in fp32: 1/loss scale times clip factor, joined in double by the caller.
  float gradient_scale = 1;
  // Stochastic rounding draws from (seed, step, index of the element) and from nothing else.
  uint64_t seed = 0;
  uint64_t step = 0;
};

}  // namespace penstock
