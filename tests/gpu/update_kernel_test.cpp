// The device's optimizer kernels, in their host build, against cpu_optim's scalar definition: equal in every byte of
// every plane, over all forms, lengths, places in the unit, and numbers made to differ.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "cpu_optim/tile_update.h"
#include "gpu/host_kernels.h"
#include "tests/gpu/adversarial.h"

namespace penstock::gpu {
namespace {

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

void update_on_cpu(Tile& tile, const StepNumbers& numbers, uint64_t first_element) {
  cpu_optim::TileView view;
  view.weight = cpu_optim::PlaneView::in_place(tile.weight.data() + tile.misalignment * bytes_of(tile.form.weight));
  view.gradient = tile.gradient.data() + tile.misalignment * bytes_of(tile.form.gradient);
  for (size_t i = 0; i < tile.layout.places.size(); ++i) {
    view.planes[i] = cpu_optim::PlaneView::in_place(tile.plane(i));
  }
  view.elements = tile.elements;
  view.first_element = first_element;
  cpu_optim::TileUpdater(tile.form, cpu_optim::Isa::scalar).update(view, numbers);
}

void update_on_device(Tile& tile, const StepNumbers& numbers, uint64_t first_element) {
  kernel::UpdateTile update;
  update.form = tile.form;
  update.numbers = numbers;
  update.weight = tile.weight.data() + tile.misalignment * bytes_of(tile.form.weight);
  update.gradient = tile.gradient.data() + tile.misalignment * bytes_of(tile.form.gradient);
  for (size_t i = 0; i < tile.layout.places.size(); ++i) update.planes[i] = tile.plane(i);
  update.elements = tile.elements;
  update.first_element = first_element;
  run_on_host(update);
}

void expect_equal(const std::vector<std::byte>& a, const std::vector<std::byte>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin());
  ASSERT_TRUE(in_a == a.end()) << what << " differs first at byte " << in_a - a.begin() << " of " << a.size();
}

std::vector<StateForm> all_forms(OptimizerKind kind) {
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

std::string name(const StateForm& form) {
  return text(name_of(form.optimizer), ", master form ", static_cast<int>(form.master), ", moment form ",
              static_cast<int>(form.moments), ", weight ", name_of(form.weight), ", gradient ", name_of(form.gradient));
}

std::vector<Hyper> hypers() {
  Hyper plain;
  Hyper decaying{.lr = 3e-4, .beta1 = 0.95, .beta2 = 0.98, .eps = 1e-6, .weight_decay = 0.1, .momentum = 0.9};
  Hyper lively{.lr = 1.0,
               .beta1 = 0.3,
               .beta2 = 0.5,
               .eps = 0,
               .weight_decay = 0.5,
               .momentum = 0.9,
               .nesterov = true,
               .lr_decay = 0.01};
  Hyper damped{.lr = 1e-2, .beta1 = 0, .beta2 = 0.9999, .weight_decay = 1e-2, .momentum = 0.5, .dampening = 0.25};
  return {plain, decaying, lively, damped};
}

class UpdateKernel : public testing::TestWithParam<OptimizerKind> {};

TEST_P(UpdateKernel, LeavesTheBytesThatTheCpuLeaves) {
  struct Size {
    uint64_t elements, misalignment, first_element;
  };
  // Ragged ends, several thread blocks, misaligned planes, and an element index that passes 2^32.
  const Size kSizes[] = {{1, 0, 0},
                         {3, 1, 256},
                         {255, 3, 512},
                         {1024, 0, 1024},
                         {5000, 0, 65536},
                         {3071, 2, (1ull << 32) - 1024},
                         {2048, 0, 1ull << 40}};
  uint64_t seed = 1;
  for (const StateForm& form : all_forms(GetParam())) {
    for (const Size& size : kSizes) {
      for (const Hyper& hyper : hypers()) {
        seed += 10;
        SCOPED_TRACE(text(name(form), ", ", size.elements, " elements at ", size.first_element, ", seed ", seed));
        Tile on_cpu(form, size.elements, size.misalignment, seed);
        Tile on_device = on_cpu;
        for (uint64_t step : {1u, 2u, 1000u}) {
          StepNumbers numbers{make_coefficients(form.optimizer, hyper, step), step == 2 ? 0.37f : 1.0f, seed, step};
          update_on_cpu(on_cpu, numbers, size.first_element);
          update_on_device(on_device, numbers, size.first_element);
          expect_equal(on_cpu.weight, on_device.weight, "weight");
          expect_equal(on_cpu.slot, on_device.slot, "state");
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, UpdateKernel,
                         testing::Values(OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::adagrad,
                                         OptimizerKind::lion, OptimizerKind::sgd),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

// Many ordinary elements, in which rare roundings show.
TEST(UpdateKernelAdamw, LeavesTheBytesThatTheCpuLeavesOverMillionsOfElements) {
  const StateForm form;
  Tile on_cpu(form, 4'000'000, 0, 77);
  Tile on_device = on_cpu;
  for (uint64_t step = 1; step <= 3; ++step) {
    StepNumbers numbers{make_coefficients(form.optimizer, {.lr = 1e-3, .weight_decay = 0.01}, step), 0.5f, 1, step};
    update_on_cpu(on_cpu, numbers, 0);
    update_on_device(on_device, numbers, 0);
    expect_equal(on_cpu.weight, on_device.weight, "weight");
    expect_equal(on_cpu.slot, on_device.slot, "state");
  }
}

// A tile cut in two anywhere (at moment blocks, where moments are bytes) is the same tile.
TEST(UpdateKernelAdamw, DoesNotDependOnHowATileIsCut) {
  for (MomentForm moments : {MomentForm::fp32, MomentForm::bf16, MomentForm::int8}) {
    StateForm form;
    form.moments = moments;
    Tile whole(form, 4096, 0, 5);
    Tile cut = whole;
    StepNumbers numbers{make_coefficients(form.optimizer, {}, 3), 1.0f, 9, 3};
    update_on_device(whole, numbers, 12 * kMomentBlockElements);
    kernel::UpdateTile part{.form = form, .numbers = numbers};
    for (auto [begin, end] : {std::pair{0, 1280}, std::pair{1280, 4096}}) {
      uint64_t at = static_cast<uint64_t>(begin);
      part.weight = cut.weight.data() + 2 * at;
      part.gradient = cut.gradient.data() + 2 * at;
      for (size_t i = 0; i < cut.layout.places.size(); ++i) {
        part.planes[i] = cut.plane(i) + cut.layout.places[i].plane.bytes(at);
      }
      part.elements = static_cast<uint64_t>(end - begin);
      part.first_element = 12 * kMomentBlockElements + at;
      run_on_host(part);
    }
    expect_equal(whole.weight, cut.weight, "weight");
    expect_equal(whole.slot, cut.slot, "state");
  }
}

}  // namespace
}  // namespace penstock::gpu
