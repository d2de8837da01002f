// NEON against scalar without GoogleTest, so that it cross-compiles anywhere: all forms, ordinary and adversarial
// numbers, the gradient helpers and the checksum.
#include <cstdio>

#include "cpu_optim/checksum.h"
#include "cpu_optim/gradient.h"
#include "tests/cpu_optim/tile_world.h"

namespace penstock::cpu_optim {
namespace {

int differences = 0;

void expect(bool equal, const std::string& what) {
  if (equal) return;
  ++differences;
  std::printf("differs: %s\n", what.c_str());
}

void check_updates(Isa isa, const StateForm& form, Numbers numbers, uint64_t elements) {
  Random random(elements);
  Tile expected(form, elements);
  expected.fill_masters(random, numbers);
  Tile actual = expected;
  for (uint64_t step = 1; step <= 3; ++step) {
    auto gradient = gradients(form.gradient, elements, random, numbers);
    auto step_numbers = numbers_of(form.optimizer, usual_hyper(form.optimizer), step);
    TileUpdater(form, Isa::scalar).update(expected.view(gradient.data(), 0, elements), step_numbers);
    TileUpdater(form, isa).update(actual.view(gradient.data(), 0, elements), step_numbers);
  }
  const std::string difference = actual.difference(expected);
  expect(difference.empty(), describe(form) + ": " + difference);
}

void check_gradients(Isa isa) {
  constexpr uint64_t kElements = 3001;
  Random random(1);
  std::vector<std::byte> bytes(kElements * 4);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  const GradientKernels kernels(isa), scalar(Isa::scalar);
  for (Dtype from : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
    double sum = 0, expected_sum = 0;
    kernels.square_sums(from, bytes.data(), kElements, {&sum, 1});
    scalar.square_sums(from, bytes.data(), kElements, {&expected_sum, 1});
    expect(sum == expected_sum || (std::isnan(sum) && std::isnan(expected_sum)), text("square sums ", name_of(from)));
    for (Dtype to : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
      std::vector<std::byte> cast(kElements * 4), expected_cast(kElements * 4);
      kernels.cast(from, bytes.data(), to, cast.data(), kElements);
      scalar.cast(from, bytes.data(), to, expected_cast.data(), kElements);
      expect(cast == expected_cast, text("cast ", name_of(from), " to ", name_of(to)));
    }
  }
  for (uint64_t length : {0u, 1u, 64u, 1000u, 12000u}) {
    std::span<const std::byte> block(bytes.data(), length);
    expect(checksum_function(isa)(block, 3) == checksum(block, 3), "checksum");
  }
}

}  // namespace
}  // namespace penstock::cpu_optim

int main() {
  using namespace penstock::cpu_optim;
  for (Isa isa : available_isas()) {
    for (const penstock::StateForm& form : all_forms()) {
      for (Numbers numbers : {Numbers::ordinary, Numbers::adversarial}) check_updates(isa, form, numbers, 1100);
    }
    check_gradients(isa);
    std::printf("%s: %zu forms compared\n", name_of(isa), all_forms().size());
  }
  if (differences == 0) std::printf("every Isa of this processor leaves the scalar kernels' bits\n");
  return differences == 0 ? 0 : 1;
}
