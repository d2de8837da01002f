#include "tiering/hyper.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace penstock {
namespace {

// The largest rate of all: with any beta1 the step size and what is divided by it are numbers.
constexpr double kRateMax = 0x1p40;
// A moment of 2^-100 that is multiplied by it is not denormal.
constexpr double kLeastKept = 0x1p-26;
constexpr double kLeastNormal = std::numeric_limits<float>::min();

bool is_kept_part(double value) { return value == 0 || value >= kLeastKept; }
bool is_beta(double value) { return is_kept_part(value) && static_cast<float>(value) < 1; }
// Finite where kernels see it, too.
bool is_number(double value) { return std::abs(value) <= std::numeric_limits<float>::max(); }
bool not_negative(double value) { return value >= 0 && is_number(value); }

// The nearest number that is the same to all hardware; a zero keeps its sign.
float held(double value) {
  return static_cast<float>(std::abs(value) < kLeastNormal ? std::copysign(0.0, value) : value);
}

// With a rate of zero, or nearly, the largest number there is: what is divided by it is as good as zero.
float finite_quotient(double a, double b) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return held(std::max(a / b, -kLargest));
}

Status refusal(OptimizerKind kind, const char* name, double value, const char* wanted) {
  return Status(Code::kUsage, text(name_of(kind), ": ", name, ": ", value), text(name, " is ", wanted));
}

}  // namespace

Status validate(OptimizerKind kind, const Hyper& hyper) {
  const char* const beta = "0, or at least 2^-26, and below 1 - 2^-25";
  if (!(hyper.lr >= 0 && hyper.lr <= kRateMax)) return refusal(kind, "lr", hyper.lr, "at least 0 and at most 2^40");
  if (!not_negative(hyper.weight_decay)) return refusal(kind, "weight_decay", hyper.weight_decay, "0 or more");
  switch (kind) {
    case OptimizerKind::adamw:
    case OptimizerKind::adam:
    case OptimizerKind::lion:
      if (!is_beta(hyper.beta1)) return refusal(kind, "beta1", hyper.beta1, beta);
      if (!is_beta(hyper.beta2)) return refusal(kind, "beta2", hyper.beta2, beta);
      if (kind != OptimizerKind::adam && !is_number(hyper.lr * hyper.weight_decay)) {
        return refusal(kind, "lr * weight_decay", hyper.lr * hyper.weight_decay, "a number");
      }
      break;
    case OptimizerKind::adagrad:
      if (!not_negative(hyper.lr_decay)) return refusal(kind, "lr_decay", hyper.lr_decay, "0 or more");
      break;
    case OptimizerKind::sgd:
      if (!is_kept_part(hyper.momentum) || !is_number(hyper.momentum)) {
        return refusal(kind, "momentum", hyper.momentum, "0, or at least 2^-26");
      }
      if (!is_number(hyper.dampening)) return refusal(kind, "dampening", hyper.dampening, "a number");
      if (hyper.nesterov && (hyper.momentum == 0 || hyper.dampening != 0)) {
        return refusal(kind, "nesterov with dampening", hyper.dampening, "0, and momentum above 0, with nesterov");
      }
      break;
  }
  const bool has_eps = kind != OptimizerKind::lion && kind != OptimizerKind::sgd;
  if (has_eps && !(hyper.eps >= kLeastNormal && is_number(hyper.eps))) {
    return refusal(kind, "eps", hyper.eps, "at least 2^-126, some 1.2e-38");
  }
  return Status();
}

Coefficients make_coefficients(OptimizerKind kind, const Hyper& hyper, uint64_t step) {
  CHECK(step >= 1, "steps count from 1");
  const Status status = validate(kind, hyper);
  CHECK(status.ok(), status.message());
  const double count = static_cast<double>(step);
  const bool is_adam = kind == OptimizerKind::adamw || kind == OptimizerKind::adam;
  const bool is_decoupled = kind == OptimizerKind::adamw || kind == OptimizerKind::lion;

  Coefficients c;
  if (is_decoupled) {
    c.decay = static_cast<float>(1 - hyper.lr * hyper.weight_decay);
  } else {
    c.l2 = held(hyper.weight_decay);
  }
  c.beta1 = static_cast<float>(hyper.beta1);
  c.beta1_rest = static_cast<float>(1 - hyper.beta1);
  c.beta2 = static_cast<float>(hyper.beta2);
  c.beta2_rest = static_cast<float>(1 - hyper.beta2);
  c.beta2_rest_root = static_cast<float>(std::sqrt(1 - hyper.beta2));
  c.momentum_from_gradient = c.beta1_rest >= 0.5f;
  c.momentum_coefficient = c.momentum_from_gradient ? c.beta1_rest - 1 : c.beta1_rest;
  c.eps = held(hyper.eps);
  c.step_size = held(-hyper.lr);
  if (is_adam) {
    const double correction = std::sqrt(1 - std::pow(hyper.beta2, count));
    const double step_size = -hyper.lr / (1 - std::pow(hyper.beta1, count));
    c.variance_correction = static_cast<float>(correction);
    c.step_size = held(step_size);
    c.root_coefficient = finite_quotient(1, step_size * correction);
    c.root_constant = finite_quotient(hyper.eps, step_size);
  }
  if (kind == OptimizerKind::adagrad) {
    c.step_size = held(-hyper.lr / (1 + (count - 1) * hyper.lr_decay));
  }
  c.momentum = static_cast<float>(hyper.momentum);
  c.dampening_rest = hyper.momentum == 0 ? 1 : static_cast<float>(1 - hyper.dampening);
  c.nesterov = hyper.nesterov;
  c.first_step = step == 1;
  return c;
}

}  // namespace penstock
