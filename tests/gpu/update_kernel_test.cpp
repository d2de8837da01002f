// The device's optimizer kernels, in their host build, against cpu_optim's scalar definition: equal in every byte of
// every plane, over all forms, lengths, places in the unit, and numbers made to differ.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "gpu/host_kernels.h"
#include "tests/gpu/update_tile.h"

namespace penstock::gpu {
namespace {

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

// A run of the tile's elements as a launch of its own.
void update_part(Tile& tile, const StepNumbers& numbers, uint64_t first_element, uint64_t begin, uint64_t end) {
  kernel::UpdateTile part{.form = tile.form, .numbers = numbers};
  part.weight = tile.weight.data() + begin * bytes_of(tile.form.weight);
  part.gradient = tile.gradient.data() + begin * bytes_of(tile.form.gradient);
  for (size_t i = 0; i < tile.layout.places.size(); ++i) {
    part.planes[i] = tile.plane(i) + tile.layout.places[i].plane.bytes(begin);
  }
  part.elements = end - begin;
  part.first_element = first_element + begin;
  run_on_host(part);
}

constexpr uint64_t kFirstElement = 12 * kMomentBlockElements;

// A tile cut in two anywhere (at moment blocks, where moments are bytes) is the same tile.
TEST(UpdateKernelAdamw, DoesNotDependOnHowATileIsCut) {
  for (MomentForm moments : {MomentForm::fp32, MomentForm::bf16, MomentForm::int8}) {
    Tile whole({.moments = moments}, 4096, 0, 5);
    Tile cut = whole;
    StepNumbers numbers{make_coefficients(whole.form.optimizer, {}, 3), 1.0f, 9, 3};
    update_on_device(whole, numbers, kFirstElement);
    update_part(cut, numbers, kFirstElement, 0, 1280);
    update_part(cut, numbers, kFirstElement, 1280, 4096);
    expect_equal(whole.weight, cut.weight, "weight");
    expect_equal(whole.slot, cut.slot, "state");
  }
}

TEST(UpdateKernelAdamw, TakesATileOfSeveralGroupsRunByRun) {
  for (MomentForm moments : {MomentForm::fp32, MomentForm::bf16, MomentForm::int8}) {
    Tile on_cpu({.moments = moments}, 4001, 0, 5);
    Tile on_device = on_cpu;
    UnitNumbers runs;
    const uint64_t step = moments == MomentForm::int8 ? kMomentBlockElements : 128;
    uint64_t begin = 0;
    for (uint64_t end : {step, 3 * step, 10 * step, uint64_t{4001}}) {
      const Hyper hyper{.lr = 1e-3 * static_cast<double>(end % 7 + 1), .weight_decay = begin == 0 ? 0 : 0.1};
      const StepNumbers numbers{make_coefficients(on_cpu.form.optimizer, hyper, 3), 1.0f, end, 3};
      runs.push_back({numbers, kFirstElement + end});
      update_part(on_device, numbers, kFirstElement, begin, end);
      begin = end;
    }
    cpu_optim::TileUpdater(on_cpu.form).update(view_on_cpu(on_cpu, kFirstElement), runs);
    expect_equal(on_cpu.weight, on_device.weight, "weight");
    expect_equal(on_cpu.slot, on_device.slot, "state");
  }
}

}  // namespace
}  // namespace penstock::gpu
