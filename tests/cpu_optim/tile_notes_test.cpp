// What a pass reports besides doing its work, and checksums on their own.
#include "cpu_optim/checksum.h"

#include <gtest/gtest.h>
#include "cpu_optim/gradient.h"
#include "tests/cpu_optim/tile_world.h"

namespace penstock::cpu_optim {
namespace {

constexpr uint64_t kElements = 2 * kBlockElements + 12345;
constexpr uint64_t kBlocks = 3;
constexpr uint64_t kSeed = 77ull << 32;

class NotesOfForm : public testing::TestWithParam<StateForm> {};

TEST_P(NotesOfForm, AreTheChecksumsOfWhatWasReadAndWritten) {
  const StateForm form = GetParam();
  Random random(3);
  Tile tile(form, kElements);
  tile.fill_masters(random, Numbers::ordinary);
  auto gradient = gradients(form.gradient, kElements, random, Numbers::ordinary);
  const Tile before = tile;
  Tile without_notes = tile;
  auto numbers = numbers_of(form.optimizer, usual_hyper(form.optimizer), 2);
  for (Isa isa : available_isas()) {
    tile = before;
    TileUpdater updater(form, isa);
    const size_t planes = tile.planes().size();
    ASSERT_EQ(updater.checksum_count(kElements), kBlocks * planes);
    std::vector<uint64_t> source(kBlocks * planes), target(source.size());
    std::vector<double> sums(kBlocks), sums_alone(kBlocks);
    TileNotes notes;
    notes.square_sums = sums;
    notes.checksum_seed = kSeed;
    notes.source_checksums = source;
    notes.target_checksums = target;
    EXPECT_TRUE(updater.update(tile.view(gradient.data(), 0, kElements), numbers, notes).ok());
    for (size_t i = 0; i < source.size(); ++i) {
      if (form.master != MasterForm::full || i % planes != 0) {
        EXPECT_EQ(source[i], before.checksum_of(i % planes, i / planes, kSeed + i)) << describe(form) << ' ' << i;
      }
      EXPECT_EQ(target[i], tile.checksum_of(i % planes, i / planes, kSeed + i)) << describe(form) << ' ' << i;
    }
    GradientKernels(Isa::scalar).square_sums(form.gradient, gradient.data(), kElements, sums_alone);
    EXPECT_EQ(sums, sums_alone);

    Tile plain = before;
    updater.update(plain.view(gradient.data(), 0, kElements), numbers);
    EXPECT_EQ(plain.difference(tile), "") << "notes change nothing: " << describe(form);

    // The second pass expects what the first one wrote; then one bit rots.
    notes.expected_checksums = target;
    std::vector<uint64_t> written = target;
    notes.target_checksums = written;
    if (form.master == MasterForm::full) tile.plane(0)[5] ^= std::byte{1};  // not read, so not looked at
    Tile rotten = tile;
    notes.expected_checksums = std::span<const uint64_t>(target);
    EXPECT_TRUE(updater.update(tile.view(gradient.data(), 0, kElements), numbers, notes).ok());
    const size_t plane = planes - 1;
    rotten.plane(plane)[tile.planes()[plane].bytes(kBlockElements) + 7] ^= std::byte{4};
    TileReport report = updater.update(rotten.view(gradient.data(), 0, kElements), numbers, notes);
    EXPECT_EQ(report.checksum_mismatch, planes + plane) << describe(form);
    rotten.plane(plane)[tile.planes()[plane].bytes(2 * kBlockElements) + 7] ^= std::byte{4};  // and one block on
    report = updater.update(rotten.view(gradient.data(), 0, kElements), numbers, notes);
    EXPECT_LT(report.checksum_mismatch, 2 * planes) << "the first is named: " << describe(form);
  }
}

std::vector<StateForm> forms_of_layout() {
  std::vector<StateForm> forms;
  for (const StateForm& form : all_forms()) {
    if (form.optimizer == OptimizerKind::adamw && form.gradient == Dtype::bf16) forms.push_back(form);
  }
  return forms;
}
INSTANTIATE_TEST_SUITE_P(Forms, NotesOfForm, testing::ValuesIn(forms_of_layout()));

TEST(TileNotes, FindsAnInfiniteGradientWhereverItIs) {
  StateForm form;
  Random random(4);
  Tile tile(form, kElements);
  auto numbers = numbers_of(form.optimizer, Hyper{}, 1);
  for (uint64_t place : {uint64_t{0}, kBlockElements + 31, kElements - 1}) {
    for (float bad : {INFINITY, -INFINITY, NAN}) {
      auto gradient = gradients(form.gradient, kElements, random, Numbers::ordinary);
      put(gradient.data(), form.gradient, place, bad);
      std::vector<double> sums(kBlocks);
      TileNotes notes;
      notes.square_sums = sums;
      EXPECT_FALSE(TileUpdater(form).update(tile.view(gradient.data(), 0, kElements), numbers, notes).gradient_finite);
      EXPECT_FALSE(std::isfinite(sums[place / kBlockElements]));
    }
  }
}

TEST(Checksum, IsTheSameOnEveryIsaAtEveryLengthAndAlignment) {
  Random random(12);
  std::vector<std::byte> bytes(70'000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  for (Isa isa : available_isas()) {
    for (uint64_t length : {0u, 1u, 63u, 64u, 65u, 127u, 128u, 4096u, 65'536u, 65'537u}) {
      for (uint64_t first : {0u, 1u, 8u, 61u}) {
        std::span<const std::byte> block(bytes.data() + first, length);
        EXPECT_EQ(checksum_function(isa)(block, 42), checksum(block, 42)) << name_of(isa) << ' ' << length;
      }
    }
  }
}

}  // namespace
}  // namespace penstock::cpu_optim
