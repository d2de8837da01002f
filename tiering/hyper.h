// What a parameter group sets, and the numbers that one step's kernels use.
//
// Coefficients are computed in double, once per group and step, and rounded once to fp32. Kernels, on whatever tier,
// see nothing else, so equal Coefficients mean equal results. One below 2^-126, which hardware may take for zero, is
// zero; so a rate that a schedule lets fade away ends as a rate of zero. Who computes them rounds to nearest.
#pragma once

#include <cstdint>

#include "tiering/state_layout.h"

namespace penstock {

// One parameter group's settings. Fields that an optimizer does not name are not read by it.
struct Hyper {
  double lr = 1e-3;
  double beta1 = 0.9;       // adamw, adam, lion
  double beta2 = 0.999;     // adamw, adam, lion
  double eps = 1e-8;        // adamw, adam, adagrad
  double weight_decay = 0;  // adamw and lion: decoupled (p shrinks); adam, adagrad and sgd: added to the gradient (L2)
  double momentum = 0;      // sgd
  double dampening = 0;     // sgd
  bool nesterov = false;    // sgd
  double lr_decay = 0;      // adagrad: lr / (1 + (step - 1) * lr_decay)
};

// Refuses what has no meaning, and what kernels cannot hold:
//   lr from 0 to 2^40; weight_decay and lr_decay 0 or more, and finite in fp32; lr * weight_decay, too, if decoupled
//   betas 0, or at least 2^-26, and below 1 in fp32, too: below 1 - 2^-25
//   eps at least 2^-126: without, an element that has had no gradient becomes 0/0, in torch as well
//   sgd: momentum 0, or at least 2^-26; Nesterov with momentum and without dampening
// An fp32 variance below 2^-100 counts as zero, so gradients below 2^-50/sqrt(1 - beta2), some 3e-14, are divided by
// eps alone: where eps is smaller than they are, their steps are longer than lr.
Status validate(OptimizerKind kind, const Hyper& hyper);

// In the formulas of arithmetic/optimizer.h, `g` is the scaled gradient and `p` the master weight.
struct Coefficients {
  float decay = 1;                      // 1 - lr*weight_decay: p shrinks by it (decoupled)
  float l2 = 0;                         // weight_decay: p*l2 joins the gradient
  float momentum_coefficient = 0;       // of (g - m); 1 - beta1, or -beta1 when the base is g (see below)
  bool momentum_from_gradient = false;  // torch's lerp starts from the nearer end: from g where 1 - beta1 >= 0.5
  float beta1 = 0;
  float beta1_rest = 0;  // 1 - beta1
  float beta2 = 0;
  float beta2_rest = 0;           // 1 - beta2
  float beta2_rest_root = 0;      // sqrt(1 - beta2)
  float variance_correction = 1;  // sqrt(1 - beta2^step)
  // adamw, adam: step_size*m / (sqrt(v)/variance_correction + eps) is m / (sqrt(v)*root_coefficient + root_constant).
  float root_coefficient = 0;
  float root_constant = 0;
  float eps = 0;
  float step_size = 0;       // adamw, adam: -lr / (1 - beta1^step); adagrad, lion, sgd: -lr
  float momentum = 0;        // sgd
  float dampening_rest = 1;  // sgd: 1 - dampening; on the first step the momentum is g itself
  bool nesterov = false;
  bool first_step = false;
};

// `step` counts from 1: it is the number of the step being taken, and belongs to the state of the parameters.
// REQUIRES: validate(kind, hyper) is ok.
Coefficients make_coefficients(OptimizerKind kind, const Hyper& hyper, uint64_t step);

}  // namespace penstock
