#include "tiering/hyper.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace penstock {
namespace {

bool in_unit_interval(double value) { return value >= 0 && value < 1; }
// Finite where kernels see it, too.
bool is_number(double value) { return std::abs(value) <= std::numeric_limits<float>::max(); }
bool not_negative(double value) { return value >= 0 && is_number(value); }

// With a rate of zero, or nearly, the largest number there is: what is divided by it is as good as zero.
float finite_quotient(double a, double b) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return static_cast<float>(a == 0 ? 0 : std::max(a / b, -kLargest));
}

// The nearest of zero, one and the numbers with an odd last bit. Where that is above 2/3, its product with a float is
// never halfway between two floats.
float odd(double decay) {
  const auto nearest = static_cast<float>(decay);
  if (nearest == 0 || nearest == 1 || (std::bit_cast<uint32_t>(nearest) & 1u) != 0) return nearest;
  return std::nextafter(nearest, decay > nearest ? 2.0f : -2.0f);
}

Status refusal(OptimizerKind kind, const char* name, double value, const char* wanted) {
  return Status(Code::kUsage, text(name_of(kind), ": ", name, ": ", value), text(name, " is ", wanted));
}

}  // namespace

Status validate(OptimizerKind kind, const Hyper& hyper) {
  if (!not_negative(hyper.lr)) return refusal(kind, "lr", hyper.lr, "0 or more");
  if (!not_negative(hyper.weight_decay)) return refusal(kind, "weight_decay", hyper.weight_decay, "0 or more");
  switch (kind) {
    case OptimizerKind::adamw:
    case OptimizerKind::adam:
    case OptimizerKind::lion:
      if (!in_unit_interval(hyper.beta1)) return refusal(kind, "beta1", hyper.beta1, "at least 0 and below 1");
      if (!in_unit_interval(hyper.beta2)) return refusal(kind, "beta2", hyper.beta2, "at least 0 and below 1");
      break;
    case OptimizerKind::adagrad:
      if (!not_negative(hyper.lr_decay)) return refusal(kind, "lr_decay", hyper.lr_decay, "0 or more");
      break;
    case OptimizerKind::sgd:
      if (!not_negative(hyper.momentum)) return refusal(kind, "momentum", hyper.momentum, "0 or more");
      if (!is_number(hyper.dampening)) return refusal(kind, "dampening", hyper.dampening, "a number");
      if (hyper.nesterov && (hyper.momentum == 0 || hyper.dampening != 0)) {
        return refusal(kind, "nesterov with dampening", hyper.dampening, "0, and momentum above 0, with nesterov");
      }
      break;
  }
  if (kind != OptimizerKind::lion && kind != OptimizerKind::sgd && !not_negative(hyper.eps)) {
    return refusal(kind, "eps", hyper.eps, "0 or more");
  }
  return Status();
}

Coefficients make_coefficients(OptimizerKind kind, const Hyper& hyper, uint64_t step) {
  CHECK(step >= 1, "steps count from 1");
  const double count = static_cast<double>(step);
  const bool is_adam = kind == OptimizerKind::adamw || kind == OptimizerKind::adam;
  const bool is_decoupled = kind == OptimizerKind::adamw || kind == OptimizerKind::lion;

  Coefficients c;
  if (is_decoupled) {
    const double decay = 1 - hyper.lr * hyper.weight_decay;
    c.decay = static_cast<float>(decay);
    c.odd_decay = odd(decay);
  } else {
    c.l2 = static_cast<float>(hyper.weight_decay);
  }
  c.beta1 = static_cast<float>(hyper.beta1);
  c.beta1_rest = static_cast<float>(1 - hyper.beta1);
  c.beta2 = static_cast<float>(hyper.beta2);
  c.beta2_rest = static_cast<float>(1 - hyper.beta2);
  c.beta2_rest_root = static_cast<float>(std::sqrt(1 - hyper.beta2));
  c.momentum_from_gradient = c.beta1_rest >= 0.5f;
  c.momentum_coefficient = c.momentum_from_gradient ? c.beta1_rest - 1 : c.beta1_rest;
  c.eps = static_cast<float>(hyper.eps);
  c.step_size = static_cast<float>(-hyper.lr);
  if (is_adam) {
    const double correction = std::sqrt(1 - std::pow(hyper.beta2, count));
    const double step_size = -hyper.lr / (1 - std::pow(hyper.beta1, count));
    c.variance_correction = static_cast<float>(correction);
    c.step_size = static_cast<float>(step_size);
    c.root_coefficient = finite_quotient(1, step_size * correction);
    c.root_constant = finite_quotient(hyper.eps, step_size);
  }
  if (kind == OptimizerKind::adagrad) {
    c.step_size = static_cast<float>(-hyper.lr / (1 + (count - 1) * hyper.lr_decay));
  }
  c.momentum = static_cast<float>(hyper.momentum);
  c.dampening_rest = hyper.momentum == 0 ? 1 : static_cast<float>(1 - hyper.dampening);
  c.nesterov = hyper.nesterov;
  c.first_step = step == 1;
  return c;
}

}  // namespace penstock
