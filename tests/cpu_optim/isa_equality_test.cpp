// One definition of the numbers: every Isa, cut, alignment, length and way of writing leaves the same bytes.
#include "cpu_optim/tile_update.h"

#include <gtest/gtest.h>
#include "tests/cpu_optim/tile_world.h"

namespace penstock::cpu_optim {
namespace {

constexpr int kSteps = 4;
// Elements' indices cross 2^32, where the random key changes, within the tile.
constexpr uint64_t kFirstElement = (uint64_t{1} << 32) - 1024;

struct Case {
  StateForm form;
  Numbers numbers;
  uint64_t seed;
};

// The tile after kSteps steps by `isa`, cut at multiples of `cut`.
Tile trained(const Case& c, uint64_t elements, Isa isa, uint64_t cut, uint64_t misalignment_bytes = 0) {
  Random random(c.seed);
  Tile tile(c.form, elements, misalignment_bytes);
  tile.fill_masters(random, c.numbers);
  TileUpdater updater(c.form, isa);
  for (int step = 1; step <= kSteps; ++step) {
    auto gradient = gradients(c.form.gradient, elements, random, c.numbers);
    auto numbers = numbers_of(c.form.optimizer, usual_hyper(c.form.optimizer), step);
    for (uint64_t first = 0; first < elements; first += cut) {
      updater.update(tile.view(gradient.data(), first, std::min(cut, elements - first), kFirstElement), numbers);
    }
  }
  return tile;
}

class EveryForm : public testing::TestWithParam<StateForm> {};

TEST_P(EveryForm, IsTheSameOnEveryIsa) {
  for (Numbers numbers : {Numbers::ordinary, Numbers::adversarial}) {
    for (uint64_t elements : {1u, 63u, 64u, 257u, 2113u}) {
      Case c{GetParam(), numbers, 17 + elements};
      Tile scalar = trained(c, elements, Isa::scalar, elements);
      for (Isa isa : available_isas()) {
        EXPECT_EQ(trained(c, elements, isa, elements).difference(scalar), "")
            << describe(c.form) << ", " << name_of(isa) << ", " << elements << " elements, seed " << c.seed;
      }
    }
  }
}

TEST_P(EveryForm, DoesNotDependOnCutsAndAlignment) {
  Case c{GetParam(), Numbers::adversarial, 23};
  constexpr uint64_t kElements = 2900;
  Tile whole = trained(c, kElements, best_isa(), kElements);
  for (uint64_t cut : {256u, 512u, 1280u}) {
    for (uint64_t misalignment_bytes : {4u, 20u}) {
      EXPECT_EQ(trained(c, kElements, best_isa(), cut, misalignment_bytes).difference(whole), "")
          << describe(c.form) << ", cut at " << cut << ", " << misalignment_bytes << " bytes off";
    }
  }
  if (c.form.moments == MomentForm::int8) return;
  for (uint64_t cut : {1u, 37u, 1001u}) {
    EXPECT_EQ(trained(c, kElements, best_isa(), cut, 2 * (cut % 2)).difference(whole), "")
        << describe(c.form) << ", cut at " << cut;
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, EveryForm, testing::ValuesIn(all_forms()), [](const auto& form) {
  std::string name = describe(form.param);
  for (char& c : name) c = c == ' ' ? '_' : c;
  return name;
});

// Of whole registers and of a rest.
TEST(TileUpdater, KeepsAMomentumOfTheLeastSizeAndNoneBelowIt) {
  constexpr uint64_t kElements = 131;
  const StateForm form{OptimizerKind::sgd, MasterForm::same, MomentForm::fp32, Dtype::fp32, Dtype::fp32};
  const float least = 0x1p-100f, below = std::nextafter(least, 0.0f), zero = 0;
  const std::pair<float, float> cases[] = {{least, least}, {-least, -least}, {below, zero}, {-below, -zero}};
  std::vector<std::byte> gradient(kElements * 4 + 64);
  for (uint64_t i = 0; i < kElements; ++i) put(gradient.data(), form.gradient, i, cases[i % 4].first);
  // The first momentum is the gradient.
  const StepNumbers numbers = numbers_of(form.optimizer, {.lr = 1e-2, .momentum = 0.9}, 1, 1.0f);
  for (Isa isa : available_isas()) {
    Tile tile(form, kElements);
    TileUpdater(form, isa).update(tile.view(gradient.data(), 0, kElements), numbers);
    for (uint64_t i = 0; i < kElements; ++i) {
      const float momentum = get(tile.plane(1), Dtype::fp32, i);
      ASSERT_EQ(std::bit_cast<uint32_t>(momentum), std::bit_cast<uint32_t>(cases[i % 4].second))
          << name_of(isa) << ", " << momentum << " of a gradient of " << cases[i % 4].first;
    }
  }
}

// Long enough that weights are written past the caches.
TEST(TileUpdater, WritesElsewhereWhatItWritesInPlace) {
  constexpr uint64_t kElements = 3 * kBlockElements + 100;
  for (const StateForm& form : all_forms()) {
    if (form.optimizer != OptimizerKind::adamw || form.gradient != Dtype::bf16) continue;
    for (Isa isa : available_isas()) {
      Random random(5);
      Tile in_place(form, kElements), elsewhere(form, kElements);
      in_place.fill_masters(random, Numbers::ordinary);
      Tile source = in_place;
      auto gradient = gradients(form.gradient, kElements, random, Numbers::ordinary);
      auto numbers = numbers_of(form.optimizer, usual_hyper(form.optimizer), 3);
      TileUpdater updater(form, isa);
      updater.update(in_place.view(gradient.data(), 0, kElements), numbers);
      TileView from = source.view(gradient.data(), 0, kElements), to = elsewhere.view(gradient.data(), 0, kElements);
      to.weight.source = from.weight.source;
      for (size_t i = 0; i + 1 < source.planes().size(); ++i) to.planes[i].source = from.planes[i].source;
      updater.update(to, numbers);
      EXPECT_EQ(elsewhere.difference(in_place), "") << describe(form) << ", " << name_of(isa);
    }
  }
}

TEST(TileUpdater, TouchesNothingPastTheTile) {
  for (const StateForm& form : all_forms()) {
    Random random(6);
    Tile tile(form, 700);
    tile.fill_masters(random, Numbers::ordinary);
    Tile before = tile;
    auto gradient = gradients(form.gradient, 700, random, Numbers::ordinary);
    TileUpdater(form).update(tile.view(gradient.data(), 0, 513), numbers_of(form.optimizer, Hyper{}, 1));
    for (size_t i = 0; i < tile.planes().size(); ++i) {
      const Plane& plane = tile.planes()[i];
      EXPECT_EQ(std::memcmp(tile.plane(i) + plane.bytes(513), before.plane(i) + plane.bytes(513),
                            plane.bytes(700) - plane.bytes(513)),
                0)
          << describe(form) << ": " << name_of(plane.role);
    }
  }
}

}  // namespace
}  // namespace penstock::cpu_optim
