// Tiles for tests: planes of any form, filled with ordinary or with adversarial numbers, updated and compared.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu_optim/tile_update.h"
#include "tiering/arithmetic/checksum.h"
#include "tiering/arithmetic/convert.h"

namespace penstock::cpu_optim {

inline std::vector<StateForm> all_forms() {
  std::vector<StateForm> forms;
  for (auto optimizer :
       {OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::adagrad, OptimizerKind::lion, OptimizerKind::sgd}) {
    for (auto master : {MasterForm::split, MasterForm::full, MasterForm::same}) {
      for (auto moments : {MomentForm::fp32, MomentForm::bf16, MomentForm::int8}) {
        for (auto weight : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
          for (auto gradient : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
            StateForm form{optimizer, master, moments, weight, gradient};
            if (validate(form).ok()) forms.push_back(form);
          }
        }
      }
    }
  }
  return forms;
}

inline std::string describe(const StateForm& form) {
  const char* masters[] = {"split", "full", "same"};
  const char* moments[] = {"fp32", "bf16", "int8"};
  return text(name_of(form.optimizer), " master ", masters[static_cast<int>(form.master)], " moments ",
              moments[static_cast<int>(form.moments)], " weight ", name_of(form.weight), " gradient ",
              name_of(form.gradient));
}

enum class Numbers { ordinary, adversarial };

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  uint64_t below(uint64_t bound) { return engine_() % bound; }
  // Four uniform numbers' sum, close to normal: std::normal_distribution takes most of a test's time.
  float normal(float size) {
    const uint64_t bits = engine_();
    int sum = -2 * 65535;
    for (int shift = 0; shift < 64; shift += 16) sum += static_cast<int>(bits >> shift & 0xffff);
    return static_cast<float>(sum) * (size * 0x1.bb67aep0f / 65536);  // the square root of 3
  }
  // One in four of the adversarial is any 32 bits at all, an edge of a format, a tie, a tiny one or a zero of either
  // sign.
  float number(Numbers numbers, float size) {
    if (numbers == Numbers::ordinary) return normal(size);
    static constexpr uint32_t kEdges[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345, 0x7f800001, 0x7f7fffff,
                                          0xff7fffff, 0x00000001, 0x807fffff, 0x00800000, 0x0d800000, 0x0d7fffff,
                                          0x04000000, 0x03ffffff, 0x3f808000, 0x3f818000, 0x477ff000, 0x33000001,
                                          0x5f800000, 0x80000000, 0x00000000, 0x1f800000, 0x7f7f8000};
    switch (below(16)) {
      case 0:
        return std::bit_cast<float>(static_cast<uint32_t>(engine_()));
      case 1:
        return std::bit_cast<float>(kEdges[below(std::size(kEdges))]);
      case 2:
        return std::ldexp(normal(1), -static_cast<int>(below(140)));
      case 3:
        return std::bit_cast<float>((std::bit_cast<uint32_t>(normal(size)) & 0xffff0000u) | 0x8000u);
      default:
        return normal(size);
    }
  }

 private:
  std::mt19937_64 engine_;
};

inline void put(std::byte* plane, Dtype dtype, uint64_t i, float value) {
  if (dtype == Dtype::fp32) {
    std::memcpy(plane + i * 4, &value, 4);
  } else {
    uint16_t half = dtype == Dtype::bf16 ? arithmetic::bf16_of_float(value) : arithmetic::fp16_of_float(value);
    std::memcpy(plane + i * 2, &half, 2);
  }
}
inline float get(const std::byte* plane, Dtype dtype, uint64_t i) {
  if (dtype == Dtype::fp32) {
    float value;
    std::memcpy(&value, plane + i * 4, 4);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, plane + i * 2, 2);
  return dtype == Dtype::bf16 ? arithmetic::float_of_bf16(half) : arithmetic::float_of_fp16(half);
}

// The planes of one tile in memory of their own, each `misalignment_bytes` past a multiple of 64.
class Tile {
 public:
  Tile(const StateForm& form, uint64_t elements, uint64_t misalignment_bytes = 0)
      : form_(form), elements_(elements), misalignment_bytes_(misalignment_bytes), planes_(resting_planes(form)) {
    planes_.insert(planes_.begin(), Plane{Role::weight, form.weight});
    for (const Plane& plane : planes_) memory_.emplace_back(plane.bytes(elements) / 64 + 2 + misalignment_bytes / 64);
  }

  std::byte* plane(size_t i) { return memory_[i].front().bytes + misalignment_bytes_; }
  const std::byte* plane(size_t i) const { return const_cast<Tile*>(this)->plane(i); }
  const std::vector<Plane>& planes() const { return planes_; }

  void fill_masters(Random& random, Numbers numbers) {
    for (uint64_t i = 0; i < elements_; ++i) {
      set_master(i, random.number(numbers, 0.05f));
    }
  }
  void set_master(uint64_t i, float value) {
    if (form_.master == MasterForm::split) {
      auto [high, low] = arithmetic::split_of(value);
      std::memcpy(plane(0) + i * 2, &high, 2);
      std::memcpy(plane(1) + i * 2, &low, 2);
    } else {
      put(plane(form_.master == MasterForm::full ? 1 : 0), Dtype::fp32, i, value);
    }
  }
  float master(uint64_t i) const {
    if (form_.master != MasterForm::split) {
      return get(plane(form_.master == MasterForm::full ? 1 : 0), Dtype::fp32, i);
    }
    arithmetic::SplitMaster halves;
    std::memcpy(&halves.high, plane(0) + i * 2, 2);
    std::memcpy(&halves.low, plane(1) + i * 2, 2);
    return arithmetic::join(halves);
  }

  // A run of the tile's elements, in place. REQUIRES: `first` a multiple of kMomentBlockElements with int8 moments.
  TileView view(const std::byte* gradient, uint64_t first, uint64_t count, uint64_t tile_first_element = 0) {
    TileView view;
    for (size_t i = 0; i < planes_.size(); ++i) {
      PlaneView at = PlaneView::in_place(plane(i) + planes_[i].bytes(first));
      (i == 0 ? view.weight : view.planes[i - 1]) = at;
    }
    view.gradient = gradient + first * bytes_of(form_.gradient);
    view.elements = count;
    view.first_element = tile_first_element + first;
    return view;
  }

  // Of one plane's part of one block.
  uint64_t checksum_of(size_t plane_number, uint64_t block, uint64_t seed) const {
    const Plane& p = planes_[plane_number];
    const uint64_t first = block * kBlockElements, count = std::min(kBlockElements, elements_ - first);
    return checksum({plane(plane_number) + p.bytes(first), p.bytes(count)}, seed);
  }

  // The first plane and byte that differ, or nothing.
  std::string difference(const Tile& other) const {
    for (size_t i = 0; i < planes_.size(); ++i) {
      const std::byte *mine = plane(i), *theirs = other.plane(i);
      for (uint64_t byte = 0; byte < planes_[i].bytes(elements_); ++byte) {
        if (mine[byte] != theirs[byte]) {
          return text(name_of(planes_[i].role), " byte ", byte, " of ", planes_[i].bytes(elements_), ": ",
                      static_cast<int>(mine[byte]), " and ", static_cast<int>(theirs[byte]));
        }
      }
    }
    return {};
  }

 private:
  // Copies of a tile lie as it does.
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };

  StateForm form_;
  uint64_t elements_;
  uint64_t misalignment_bytes_;
  std::vector<Plane> planes_;
  std::vector<std::vector<Line>> memory_;
};

inline std::vector<std::byte> gradients(Dtype dtype, uint64_t elements, Random& random, Numbers numbers,
                                        float size = 1e-3f) {
  std::vector<std::byte> bytes(elements * bytes_of(dtype) + 64);
  for (uint64_t i = 0; i < elements; ++i) put(bytes.data(), dtype, i, random.number(numbers, size));
  return bytes;
}

inline Hyper usual_hyper(OptimizerKind kind) {
  Hyper hyper;
  hyper.weight_decay = 0.1;
  if (kind == OptimizerKind::sgd) hyper = {.lr = 1e-2, .weight_decay = 0.01, .momentum = 0.9, .dampening = 0.1};
  return hyper;
}

inline StepNumbers numbers_of(OptimizerKind kind, const Hyper& hyper, uint64_t step, float gradient_scale = 0.7f) {
  return {make_coefficients(kind, hyper, step), gradient_scale, /*seed=*/0x5eed, step};
}

}  // namespace penstock::cpu_optim
