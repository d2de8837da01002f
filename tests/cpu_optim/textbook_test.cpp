// The definition against the textbook: every optimizer, element by element, against the same step in double, with
// plain formulas that share nothing with tiering/arithmetic.
//
// Bound per step: the moments are a few fp32 roundings (4 ulp, where their two terms do not cancel; where they do, 4
// ulp of the larger term); the update u = |change of p| has at most 8 roundings; adding it rounds p once, decay once
// more.
#include <algorithm>

#include <gtest/gtest.h>

#include "tests/cpu_optim/tile_world.h"
#include "tiering/arithmetic/byte_moments.h"

namespace penstock::cpu_optim {
namespace {

constexpr double kUlp = 1.0 / (1 << 23);

struct Element {
  double p, m, v;
};
struct Bounds {
  double p, m, v;
};

double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

// The step as papers write it, and what fp32 may be off by.
Bounds step_in_double(OptimizerKind kind, const Hyper& h, uint64_t step, double g, Element& e) {
  const Element old = e;
  const double t = static_cast<double>(step);
  double change = 0, decayed = e.p, term = std::abs(g);
  switch (kind) {
    case OptimizerKind::adamw:
    case OptimizerKind::adam: {
      if (kind == OptimizerKind::adamw) decayed = e.p - h.lr * h.weight_decay * e.p;
      if (kind == OptimizerKind::adam) g += h.weight_decay * e.p, term += std::abs(h.weight_decay * e.p);
      e.m = h.beta1 * e.m + (1 - h.beta1) * g;
      e.v = h.beta2 * e.v + (1 - h.beta2) * g * g;
      change = -h.lr * (e.m / (1 - std::pow(h.beta1, t))) / (std::sqrt(e.v / (1 - std::pow(h.beta2, t))) + h.eps);
      break;
    }
    case OptimizerKind::adagrad:
      g += h.weight_decay * e.p, term += std::abs(h.weight_decay * e.p);
      e.v += g * g;
      change = -h.lr / (1 + (t - 1) * h.lr_decay) * g / (std::sqrt(e.v) + h.eps);
      break;
    case OptimizerKind::lion:
      decayed = e.p - h.lr * h.weight_decay * e.p;
      change = -h.lr * sign(h.beta1 * e.m + (1 - h.beta1) * g);
      e.m = h.beta2 * e.m + (1 - h.beta2) * g;
      break;
    case OptimizerKind::sgd: {
      g += h.weight_decay * e.p, term += std::abs(h.weight_decay * e.p);
      if (h.momentum == 0) {
        change = -h.lr * g;
        break;
      }
      e.m = step == 1 ? g : h.momentum * e.m + (1 - h.dampening) * g;
      change = -h.lr * (h.nesterov ? g + h.momentum * e.m : e.m);
      break;
    }
  }
  e.p = decayed + change;
  Bounds bounds;
  bounds.m = 4 * kUlp * (std::abs(old.m) + term);
  bounds.v = 4 * kUlp * (old.v + term * term);
  // What an error of m and of v does to the change, besides its own roundings.
  double relative = 8 * kUlp + (e.v > 0 ? bounds.v / e.v : 0);
  double scale = std::abs(e.m) > 0 ? std::abs(change / e.m) : 0;
  const bool moves_by_gradient = kind == OptimizerKind::adagrad || (kind == OptimizerKind::sgd && h.momentum == 0);
  if (moves_by_gradient) scale = std::abs(g) > 0 ? std::abs(change / g) : 0;
  if (kind == OptimizerKind::lion) scale = 0;
  bounds.p = 2 * kUlp * std::abs(old.p) + relative * std::abs(change) + scale * bounds.m + kUlp * std::abs(e.p);
  return bounds;
}

std::vector<Hyper> hypers_of(OptimizerKind kind) {
  std::vector<Hyper> hypers = {usual_hyper(kind), usual_hyper(kind), usual_hyper(kind)};
  hypers[1].weight_decay = 0;
  hypers[1].lr = 3e-4;
  hypers[2].beta1 = 0.3;
  hypers[2].beta2 = 0.9;
  hypers[2].lr_decay = 0.05;
  if (kind == OptimizerKind::sgd) hypers[2].dampening = 0, hypers[2].nesterov = true;
  return hypers;
}

// Of sgd's steps some are without momentum, and leave what there is of it to the others.
bool does_rest(OptimizerKind kind, uint64_t step) { return kind == OptimizerKind::sgd && step % 4 == 3; }

Hyper without_momentum(Hyper hyper) {
  hyper.momentum = 0;
  hyper.nesterov = false;
  return hyper;
}

TEST(Definition, IsTheTextbooksStepWithinItsRoundings) {
  constexpr uint64_t kElements = 4096;
  for (const StateForm& form : all_forms()) {
    if (form.moments != MomentForm::fp32 || form.gradient != Dtype::fp32) continue;
    for (const Hyper& hyper : hypers_of(form.optimizer)) {
      Random random(99);
      Tile tile(form, kElements);
      tile.fill_masters(random, Numbers::ordinary);
      const size_t first_moment = form.master == MasterForm::same ? 1 : 2;
      const bool has_m = form.optimizer != OptimizerKind::adagrad;
      const bool has_v = form.optimizer != OptimizerKind::lion && form.optimizer != OptimizerKind::sgd;
      for (uint64_t step = 1; step <= 20; ++step) {
        const bool rests = does_rest(form.optimizer, step);
        const Hyper now = rests ? without_momentum(hyper) : hyper;
        auto gradient = gradients(form.gradient, kElements, random, Numbers::ordinary);
        std::vector<Element> before(kElements);
        const std::byte* m_plane = tile.plane(first_moment);
        const std::byte* v_plane = tile.plane(first_moment + (has_m ? 1 : 0) * (has_v ? 1 : 0));
        auto read = [&](uint64_t i) {
          return Element{tile.master(i), has_m ? get(m_plane, Dtype::fp32, i) : 0,
                         has_v ? get(v_plane, Dtype::fp32, i) : 0};
        };
        for (uint64_t i = 0; i < kElements; ++i) before[i] = read(i);
        TileUpdater(form, Isa::scalar)
            .update(tile.view(gradient.data(), 0, kElements), numbers_of(form.optimizer, now, step, 0.5f));
        for (uint64_t i = 0; i < kElements; ++i) {
          Element expected = before[i];
          const double g = 0.5 * get(gradient.data(), Dtype::fp32, i);
          const Bounds bounds = step_in_double(form.optimizer, now, step, g, expected);
          const Element actual = read(i);
          ASSERT_NEAR(actual.p, expected.p, bounds.p) << describe(form) << ", step " << step << ", element " << i;
          ASSERT_NEAR(actual.m, expected.m, bounds.m) << describe(form) << ", step " << step << ", element " << i;
          if (rests) {
            ASSERT_EQ(actual.m, before[i].m) << describe(form) << ", step " << step << ", element " << i;
          }
          ASSERT_NEAR(actual.v, expected.v, bounds.v) << describe(form) << ", step " << step << ", element " << i;
          if (form.weight != Dtype::fp32) {
            const float nearest = form.weight == Dtype::fp16
                                      ? arithmetic::float_of_fp16(arithmetic::fp16_of_float(tile.master(i)))
                                      : arithmetic::float_of_bf16(arithmetic::bf16_of_float(tile.master(i)));
            const float weight = get(tile.plane(0), form.weight, i);
            // A split weight rounds ties away from zero, which is one bf16 step from ties to even.
            ASSERT_LE(std::abs(weight - nearest), form.master == MasterForm::split ? std::abs(nearest) / 128 : 0.0f);
            ASSERT_LE(std::abs(weight - tile.master(i)), std::abs(tile.master(i)) / 256 + 1e-7f);
          }
        }
      }
    }
  }
}

// A plane of moments in fewer bits; of variances, by their roots.
class RestingMoments {
 public:
  RestingMoments(const Tile& tile, MomentForm form, Role role) : form_(form), is_root_(role == Role::variance) {
    const Role scales = is_root_ ? Role::variance_scale : Role::momentum_scale;
    for (size_t i = 0; i < tile.planes().size(); ++i) {
      if (tile.planes()[i].role == role) values_ = tile.plane(i);
      if (tile.planes()[i].role == scales) scales_ = tile.plane(i);
    }
  }

  bool exist() const { return values_ != nullptr; }
  double value(uint64_t i) const {
    if (!exist()) return 0;
    if (form_ == MomentForm::bf16)
      return is_root_ ? std::sqrt(get(values_, Dtype::bf16, i)) : get(values_, Dtype::bf16, i);
    const auto byte = static_cast<uint8_t>(values_[i]);
    return (is_root_ ? arithmetic::root_of_code(byte) : arithmetic::momentum_of_code(byte)) * scale(i);
  }
  // From one number to the next where `exact` lies: fractions of 7 bits (of v, so half as much of its root), 3 and 4.
  double step(uint64_t i, double exact) const {
    if (form_ == MomentForm::bf16) return std::ldexp(std::abs(exact), is_root_ ? -8 : -7);
    const double least = std::ldexp(scale(i), -15) * (is_root_ ? 1 : 9.0 / 8);
    return std::max(least, std::ldexp(std::abs(exact), is_root_ ? -4 : -3));
  }

 private:
  float scale(uint64_t i) const { return get(scales_, Dtype::fp32, i / kMomentBlockElements); }

  const MomentForm form_;
  const bool is_root_;
  const std::byte* values_ = nullptr;
  const std::byte* scales_ = nullptr;
};

// The weight feels nothing of a step's own rounding; what rests is one of the two numbers beside the exact one.
TEST(Definition, IsTheTextbooksStepFromRoundedMomentsToRoundedMoments) {
  constexpr uint64_t kElements = 4096;
  for (const StateForm& form : all_forms()) {
    if (form.moments == MomentForm::fp32 || form.gradient != Dtype::fp32) continue;
    for (const Hyper& hyper : hypers_of(form.optimizer)) {
      Random random(98);
      Tile tile(form, kElements);
      tile.fill_masters(random, Numbers::ordinary);
      const RestingMoments momenta(tile, form.moments, Role::momentum), roots(tile, form.moments, Role::variance);
      for (uint64_t step = 1; step <= 20; ++step) {
        const bool rests = does_rest(form.optimizer, step);
        const Hyper now = rests ? without_momentum(hyper) : hyper;
        auto gradient = gradients(form.gradient, kElements, random, Numbers::ordinary);
        std::vector<Element> before(kElements);
        for (uint64_t i = 0; i < kElements; ++i) {
          before[i] = {tile.master(i), momenta.value(i), roots.value(i) * roots.value(i)};
        }
        TileUpdater(form, Isa::scalar)
            .update(tile.view(gradient.data(), 0, kElements), numbers_of(form.optimizer, now, step, 0.5f));
        for (uint64_t i = 0; i < kElements; ++i) {
          const auto where = [&] { return text(describe(form), ", step ", step, ", element ", i); };
          Element expected = before[i];
          const double g = 0.5 * get(gradient.data(), Dtype::fp32, i);
          const Bounds bounds = step_in_double(form.optimizer, now, step, g, expected);
          const double root = std::sqrt(expected.v), root_bound = root * (bounds.v / (expected.v + 1e-300) + 4 * kUlp);
          ASSERT_NEAR(tile.master(i), expected.p, bounds.p) << where();
          if (momenta.exist()) {
            ASSERT_NEAR(momenta.value(i), expected.m, bounds.m + momenta.step(i, expected.m)) << where();
            if (rests) {
              ASSERT_EQ(momenta.value(i), before[i].m) << where();
            }
          }
          if (roots.exist()) {
            ASSERT_NEAR(roots.value(i), root, root_bound + roots.step(i, root)) << where();
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace penstock::cpu_optim
