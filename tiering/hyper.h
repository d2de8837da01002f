// What a parameter group sets, and the numbers that one step's kernels use.
//
// Coefficients are computed in double, once per group and step, and rounded once to fp32. Kernels, on whatever tier,
// see nothing else, so equal Coefficients mean equal results.
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

// Refuses what has no meaning: a beta outside [0, 1), a negative rate, Nesterov without momentum or with dampening.
Status validate(OptimizerKind kind, const Hyper& hyper);

// In the formulas of arithmetic/optimizer.h, `g` is the scaled gradient and `p` the master weight.
struct Coefficients {
  float decay = 1;                      // 1 - lr*weight_decay: p shrinks by it (decoupled)
  float odd_decay = 1;                  // the same beside moments of fewer bits: one, or a number with an odd last bit
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
Coefficients make_coefficients(OptimizerKind kind, const Hyper& hyper, uint64_t step);

}  // namespace penstock
