// Optimizer tiles in plain memory with numbers made to differ, in every form there is, and the step that cpu_optim
// takes over them: what a device's step is compared with.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu_optim/tile_update.h"
#include "tests/gpu/adversarial.h"

namespace penstock::gpu {

// A tile's planes, weight and gradient in plain memory, `misalignment` elements past an aligned place.
struct Tile {
  StateForm form;
  TileLayout layout;
  std::vector<std::byte> slot, weight, gradient;
  uint64_t elements;
  uint64_t misalignment;

  Tile(const StateForm& tile_form, uint64_t tile_elements, uint64_t misaligned, uint64_t seed)
      : form(tile_form),
        layout(form, tile_elements + misaligned),
        slot(layout.size_bytes),
        weight((tile_elements + misaligned) * bytes_of(form.weight)),
        gradient((tile_elements + misaligned) * bytes_of(form.gradient)),
        elements(tile_elements),
        misalignment(misaligned) {
    uint64_t count = elements + misaligned;
    gradient = bytes_in(form.gradient, adversarial_floats(count, seed, 1e-3f, Tiny::kept));
    std::vector<float> master = adversarial_floats(count, seed + 1, 0.1f, Tiny::flushed);
    weight = bytes_in(form.weight, master);
    for (const TileLayout::Place& place : layout.places) fill(place, master, count, seed + 2);
  }

  std::byte* plane(size_t index) {
    const TileLayout::Place& place = layout.places[index];
    bool is_scale = place.plane.role == Role::momentum_scale || place.plane.role == Role::variance_scale;
    return slot.data() + place.offset_bytes + (is_scale ? 0 : misalignment * bytes_of(place.plane.dtype));
  }

 private:
  void fill(const TileLayout::Place& place, const std::vector<float>& master, uint64_t count, uint64_t seed) {
    std::byte* target = slot.data() + place.offset_bytes;
    auto put = [&](const std::vector<std::byte>& bytes) { std::memcpy(target, bytes.data(), bytes.size()); };
    std::mt19937_64 random(seed);
    bool is_variance = place.plane.role == Role::variance;
    std::vector<float> moments = adversarial_floats(count, seed + (is_variance ? 1 : 0), 1e-4f, Tiny::flushed);
    if (is_variance) {
      for (float& value : moments) value = std::abs(value);
    }
    switch (place.plane.role) {
      case Role::master:
        return put(bytes_in(Dtype::fp32, master));
      case Role::master_low:
        for (uint64_t i = 0; i < count; ++i) {
          arithmetic::SplitMaster split = arithmetic::split_of(master[i]);
          std::memcpy(target + 2 * i, &split.low, 2);
          std::memcpy(&weight[2 * i], &split.high, 2);
        }
        return;
      case Role::momentum_scale:
      case Role::variance_scale:
        return fill_scales(place, random);
      default:
        if (place.plane.dtype != Dtype::int8) return put(bytes_in(place.plane.dtype, moments));
        for (uint64_t i = 0; i < count; ++i) target[i] = static_cast<std::byte>(random());
    }
  }

  // A block of zeros and a block of NaN hold zero bytes (tiering/arithmetic/byte_moments.h).
  void fill_scales(const TileLayout::Place& place, std::mt19937_64& random) {
    Role role = place.plane.role == Role::momentum_scale ? Role::momentum : Role::variance;
    std::byte* bytes = slot.data() + layout.find(role)->offset_bytes;
    for (uint64_t block = 0; block < ceil_div(elements, kMomentBlockElements); ++block) {
      float scale = std::ldexp(1.0f, static_cast<int>(random() % 60) - 50);
      uint64_t kind = random() % 16;
      if (kind == 0) scale = 0;
      if (kind == 1) scale = std::bit_cast<float>(0x7fc0'0000u);
      std::memcpy(slot.data() + place.offset_bytes + 4 * block, &scale, 4);
      uint64_t begin = block * kMomentBlockElements;
      if (kind < 2) std::memset(bytes + misalignment + begin, 0, std::min(kMomentBlockElements, elements - begin));
    }
  }
};

inline cpu_optim::TileView view_on_cpu(Tile& tile, uint64_t first_element) {
  cpu_optim::TileView view;
  view.weight = cpu_optim::PlaneView::in_place(tile.weight.data() + tile.misalignment * bytes_of(tile.form.weight));
  view.gradient = tile.gradient.data() + tile.misalignment * bytes_of(tile.form.gradient);
  for (size_t i = 0; i < tile.layout.places.size(); ++i) {
    view.planes[i] = cpu_optim::PlaneView::in_place(tile.plane(i));
  }
  view.elements = tile.elements;
  view.first_element = first_element;
  return view;
}

inline void update_on_cpu(Tile& tile, const StepNumbers& numbers, uint64_t first_element,
                          cpu_optim::Isa isa = cpu_optim::Isa::scalar) {
  cpu_optim::TileUpdater(tile.form, isa).update(view_on_cpu(tile, first_element), numbers);
}

inline std::vector<StateForm> all_forms(OptimizerKind kind) {
  std::vector<StateForm> forms;
  for (MomentForm moments : {MomentForm::fp32, MomentForm::bf16, MomentForm::int8}) {
    for (Dtype gradient : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
      forms.push_back({kind, MasterForm::split, moments, Dtype::bf16, gradient});
      forms.push_back({kind, MasterForm::full, moments, Dtype::bf16, gradient});
      forms.push_back({kind, MasterForm::full, moments, Dtype::fp16, gradient});
      forms.push_back({kind, MasterForm::same, moments, Dtype::fp32, gradient});
    }
  }
  return forms;
}

inline std::string name(const StateForm& form) {
  return text(name_of(form.optimizer), ", master form ", static_cast<int>(form.master), ", moment form ",
              static_cast<int>(form.moments), ", weight ", name_of(form.weight), ", gradient ", name_of(form.gradient));
}

inline std::vector<Hyper> hypers() {
  Hyper plain;
  Hyper decaying{.lr = 3e-4, .beta1 = 0.95, .beta2 = 0.98, .eps = 1e-6, .weight_decay = 0.1, .momentum = 0.9};
  Hyper lively{.lr = 1.0,
               .beta1 = 0.3,
               .beta2 = 0.5,
               .eps = 0x1p-126,
               .weight_decay = 0.5,
               .momentum = 0.9,
               .nesterov = true,
               .lr_decay = 0.01};
  Hyper damped{.lr = 1e-2, .beta1 = 0, .beta2 = 0.9999, .weight_decay = 1e-2, .momentum = 0.5, .dampening = 0.25};
  return {plain, decaying, lively, damped};
}

}  // namespace penstock::gpu
