// The reference for the engine: the same training step in memory, one element after another, sharing no code with the
// engine. AdamW on an fp32 master whose upper half is the bf16 weight, bf16 gradients, clipping, overflow skipping.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
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

  void add_gradient(const uint16_t* micro_batch, bool first, bool last);
  // Blocks of 64 Ki, 32 running sums in each, added as a tree.
  double square_sum() const;
  uint16_t high(size_t i) const { return static_cast<uint16_t>((bits(p[i]) + 0x8000) >> 16); }
  uint16_t low(size_t i) const { return static_cast<uint16_t>(bits(p[i])); }
};

// One step over all units; `count` of the updates before it, and each part's own, are raised unless the step is
// skipped.
void step(std::vector<Unit>& units, const Settings& s, uint64_t& count);

}  // namespace penstock::plain
