#include "tools/update/plain_loop.h"

#include <cmath>

namespace penstock::plain {
namespace {

float tiny_to_zero(float x, float tiny) { return std::fabs(x) < tiny ? std::copysign(0.0f, x) : x; }
float stored(float x) { return std::isnan(x) ? real(0x7fc00000) : tiny_to_zero(x, 0x1p-100f); }

}  // namespace

void Unit::add_gradient(const uint16_t* micro_batch, bool first, bool last) {
  sum.resize(p.size());
  for (size_t i = 0; i < p.size(); ++i) {
    float x = real(uint32_t{micro_batch[i]} << 16);
    sum[i] = first ? x : sum[i] + x;
    uint32_t b = bits(sum[i]);
    if (last) g[i] = std::isnan(sum[i]) ? 0x7fc0 : static_cast<uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16);
  }
}

double Unit::square_sum() const {
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

void step(std::vector<Unit>& units, const Settings& s, uint64_t& count) {
  double squares = 0;
  for (const Unit& unit : units) squares += unit.square_sum();
  if (s.skip_overflow && !std::isfinite(squares)) return;
  double factor = s.clip > 0 ? s.clip / (std::sqrt(squares) / s.loss_scale + 1e-6) : 1.0;
  if (factor > 1) factor = 1;  // and stays no number where it is none
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
