// The reference for the engine: the same training step in memory, one element after another, sharing no code with the
// engine. AdamW on an fp32 master whose upper half is the bf16 weight, bf16 gradients, clipping, overflow skipping.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace penstock::plain {

inline uint32_t bits(float x) {
  uint32_t b;
  std::memcpy(&b, &x, 4);
  return b;
}
inline float real(uint32_t b) {
  float x;
  std::memcpy(&x, &b, 4);
  return x;
}
inline float tiny_to_zero(float x, float tiny) { return std::fabs(x) < tiny ? std::copysign(0.0f, x) : x; }
inline float stored(float x) { return std::isnan(x) ? real(0x7fc00000) : tiny_to_zero(x, 0x1p-100f); }

// Of hyper-parameters.
struct Group {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0;
};

struct Settings {
  std::vector<Group> groups = {Group()};
  double clip = 0, loss_scale = 1;
  bool skip_overflow = false;
};

struct Unit {
  // The elements from the part before it to `end`.
  struct Part {
    size_t group, end;
    double count = 0;     // of its updates
    bool absent = false;  // no gradient in this step: neither updated nor counted
  };
  std::vector<float> p, m, v, sum;
  std::vector<uint16_t> g;  // complete, in bf16
  std::vector<Part> parts;

  explicit Unit(std::vector<float> master = {})
      : p(std::move(master)), m(p.size()), v(p.size()), g(p.size()), parts{{0, p.size()}} {}

  void add_gradient(const uint16_t* micro_batch, bool first, bool last) {
    sum.resize(p.size());
    for (size_t i = 0; i < p.size(); ++i) {
      float x = real(uint32_t{micro_batch[i]} << 16);
      sum[i] = first ? x : sum[i] + x;
      uint32_t b = bits(sum[i]);
      if (last) g[i] = std::isnan(sum[i]) ? 0x7fc0 : static_cast<uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16);
    }
  }
  // Blocks of 64 Ki, 32 running sums in each, added as a tree.
  double square_sum() const {
    double total = 0;
    for (size_t block = 0; block < g.size(); block += 65536) {
      double lane[32] = {};
      for (size_t i = block; i < g.size() && i < block + 65536; ++i) {
        double x = real(uint32_t{g[i]} << 16);
        lane[(i - block) % 32] += x * x;
      }
      for (int width = 16; width >= 1; width /= 2) {
        for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
      }
      total += lane[0];
    }
    return total;
  }
  uint16_t high(size_t i) const { return static_cast<uint16_t>((bits(p[i]) + 0x8000) >> 16); }
  uint16_t low(size_t i) const { return static_cast<uint16_t>(bits(p[i])); }
};

// One step over all units; `count` of the updates before it, and each part's own, are raised unless the step is
// skipped.
inline void step(std::vector<Unit>& units, const Settings& s, uint64_t& count) {
  double squares = 0;
  for (const Unit& unit : units) squares += unit.square_sum();
  if (s.skip_overflow && !std::isfinite(squares)) return;
  double factor = s.clip > 0 ? std::fmin(1.0, s.clip / (std::sqrt(squares) / s.loss_scale + 1e-6)) : 1.0;
  ++count;
  const float scale = static_cast<float>(1 / s.loss_scale * factor);
  for (Unit& unit : units) {
    size_t i = 0;
    for (Unit::Part& part : unit.parts) {
      if (part.absent) {
        i = part.end;
        continue;
      }
      const double t = ++part.count;
      const Group& group = s.groups[part.group];
      const float shrink = static_cast<float>(1 - group.lr * group.decay), w1 = static_cast<float>(1 - group.beta1),
                  w2 = static_cast<float>(1 - group.beta2), b2 = static_cast<float>(group.beta2),
                  eps = static_cast<float>(group.eps),
                  root = static_cast<float>(std::sqrt(1 - std::pow(group.beta2, t))),
                  rate = static_cast<float>(-group.lr / (1 - std::pow(group.beta1, t)));
      for (; i < part.end; ++i) {
        float &p = unit.p[i], &m = unit.m[i], &v = unit.v[i];
        float g = tiny_to_zero(real(uint32_t{unit.g[i]} << 16) * scale, 0x1p-120f);
        p *= shrink;
        m = stored(std::fma(w1, g - m, m));
        float held = v * b2;
        v = stored(std::fma(w2 * g, g, held));
        float moved = tiny_to_zero(rate * m, 0x1p-120f) / (std::sqrt(v) / root + eps);
        p = stored(p + tiny_to_zero(moved, 0x1p-120f));
      }
    }
  }
}

}  // namespace penstock::plain
