// A tile of several groups has the bytes of as many tiles: each run of its elements is updated with its own numbers,
// wherever runs end, whatever the Isa, the notes and the threads.
#include <gtest/gtest.h>

#include <algorithm>

#include "cpu_optim/update_workers.h"
#include "tests/cpu_optim/tile_world.h"

namespace penstock::cpu_optim {
namespace {

constexpr int kSteps = 3;

enum class Ends { aligned, anywhere };

// Runs of a unit that begin before the tile and end after it or with it, no two of them with the same numbers.
std::vector<NumbersRun> runs_over(const StateForm& form, uint64_t first, uint64_t elements, Ends ends, uint64_t step,
                                  uint64_t seed) {
  const uint64_t multiple = form.moments == MomentForm::int8 ? kMomentBlockElements : ends == Ends::aligned ? 128 : 1;
  Random random(seed);
  std::vector<NumbersRun> runs;
  uint64_t end = round_down(first - std::min<uint64_t>(first, 3000), kMomentBlockElements);
  while (end < first + elements) {
    // Many are short, some are longer than what a kernel is given at once.
    end += multiple * (1 + random.below(random.below(4) == 0 ? 5000 / multiple : 600 / multiple + 1));
    Hyper hyper = usual_hyper(form.optimizer);
    hyper.lr *= static_cast<double>(1 + runs.size() % 7);
    hyper.weight_decay *= static_cast<double>(runs.size() % 3);
    StepNumbers numbers = numbers_of(form.optimizer, hyper, step, 0.5f + 0.01f * static_cast<float>(runs.size() % 11));
    numbers.seed += runs.size();
    runs.push_back({numbers, end, runs.size() % 5 == 3});
  }
  if (ends == Ends::anywhere) runs.back().end_element = first + elements;
  return runs;
}

// Each run as a tile of its own, by the scalar kernel.
void update_separately(Tile& tile, const StateForm& form, const std::byte* gradient, uint64_t first, uint64_t elements,
                       const std::vector<NumbersRun>& runs) {
  TileUpdater updater(form, Isa::scalar);
  uint64_t begin = first;
  for (const NumbersRun& run : runs) {
    const uint64_t end = std::min(run.end_element, first + elements);
    if (end <= begin) continue;
    if (run.untouched) {
      // A weight beside a full master is nothing but that, rounded.
      for (uint64_t i = begin - first; form.master == MasterForm::full && i < end - first; ++i) {
        put(tile.plane(0), form.weight, i, tile.master(i));
      }
      begin = end;
      continue;
    }
    updater.update(tile.view(gradient, begin - first, end - begin, first), run.numbers);
    begin = end;
  }
}

struct Shape {
  uint64_t first, elements;
  Ends ends;
};

std::string text_of(const Shape& shape) {
  return text(shape.elements, " elements from ", shape.first, shape.ends == Ends::aligned ? ", aligned" : ", anywhere");
}

std::string name_of_case(const testing::TestParamInfo<StateForm>& form) {
  std::string name = describe(form.param);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

class RunsOfForm : public testing::TestWithParam<StateForm> {};

TEST_P(RunsOfForm, LeaveTheBytesOfSeparateTiles) {
  const StateForm form = GetParam();
  constexpr uint64_t kKey = uint64_t{1} << 32;  // where the random key changes
  for (const Shape& shape :
       {Shape{0, 4000, Ends::aligned}, Shape{kKey - 2048, 5001, Ends::anywhere}, Shape{512, 300, Ends::anywhere}}) {
    Random random(shape.elements);
    Tile start(form, shape.elements);
    start.fill_masters(random, Numbers::adversarial);
    const auto gradient = gradients(form.gradient, shape.elements, random, Numbers::adversarial);
    Tile separate = start;
    for (int step = 1; step <= kSteps; ++step) {
      update_separately(separate, form, gradient.data(), shape.first, shape.elements,
                        runs_over(form, shape.first, shape.elements, shape.ends, step, 5));
    }
    for (Isa isa : available_isas()) {
      Tile together = start;
      for (int step = 1; step <= kSteps; ++step) {
        TileUpdater(form, isa).update(together.view(gradient.data(), 0, shape.elements, shape.first),
                                      runs_over(form, shape.first, shape.elements, shape.ends, step, 5));
      }
      ASSERT_EQ(together.difference(separate), "") << describe(form) << ", " << name_of(isa) << ", " << text_of(shape);
    }
  }
}

// An element's index of more than 32 bits is part of what its rounding is drawn from.
TEST(StochasticKeys, DifferWhereOnlyTheUpperHalfOfAnIndexDoes) {
  const StateForm form{OptimizerKind::adamw, MasterForm::same, MomentForm::bf16, Dtype::fp32, Dtype::fp32};
  constexpr uint64_t kElements = 2048;
  Random random(3);
  Tile start(form, kElements);
  start.fill_masters(random, Numbers::ordinary);
  const auto gradient = gradients(form.gradient, kElements, random, Numbers::ordinary);
  const StepNumbers numbers = numbers_of(form.optimizer, usual_hyper(form.optimizer), 1);
  auto updated_at = [&](uint64_t first) {
    Tile tile = start;
    TileUpdater(form).update(tile.view(gradient.data(), 0, kElements, first), numbers);
    return tile;
  };
  EXPECT_EQ(updated_at(0).difference(updated_at(0)), "");
  EXPECT_NE(updated_at(0).difference(updated_at(uint64_t{1} << 32)), "");
}

INSTANTIATE_TEST_SUITE_P(Forms, RunsOfForm, testing::ValuesIn(all_forms()), name_of_case);

std::vector<StateForm> forms_of_layout() {
  std::vector<StateForm> forms;
  for (const StateForm& form : all_forms()) {
    if (form.optimizer == OptimizerKind::adamw && form.gradient == Dtype::bf16) forms.push_back(form);
  }
  return forms;
}

class LongRunsOfForm : public testing::TestWithParam<StateForm> {};

// Long enough for several blocks of notes, several workers, and weights that are written past the caches.
TEST_P(LongRunsOfForm, ChangeNeitherNotesNorWhatWorkersShare) {
  const StateForm form = GetParam();
  constexpr uint64_t kFirst = 3 * kBlockElements, kElements = 4 * kBlockElements + 12'345;
  for (Ends ends : {Ends::aligned, Ends::anywhere}) {
    Random random(31);
    Tile start(form, kElements);
    start.fill_masters(random, Numbers::ordinary);
    const auto gradient = gradients(form.gradient, kElements, random, Numbers::ordinary);
    const auto runs = runs_over(form, kFirst, kElements, ends, 1, 77);
    Tile separate = start;
    update_separately(separate, form, gradient.data(), kFirst, kElements, runs);

    TileUpdater updater(form);
    Tile alone = start;
    updater.update(alone.view(gradient.data(), 0, kElements, kFirst), runs);
    ASSERT_EQ(alone.difference(separate), "") << describe(form);
    for (uint32_t threads : {1u, 2u, 3u, 7u}) {
      UpdateWorkers workers({.threads = threads});
      Tile shared = start;
      std::vector<uint64_t> checksums(updater.checksum_count(kElements));
      TileJob job{&updater, shared.view(gradient.data(), 0, kElements, kFirst), runs, {}};
      job.notes.target_checksums = checksums;
      EXPECT_TRUE(workers.run(job).ok());
      ASSERT_EQ(shared.difference(separate), "") << describe(form) << ", " << threads << " threads";
      for (size_t i = 0; i < checksums.size(); ++i) {
        const size_t planes = shared.planes().size();
        ASSERT_EQ(checksums[i], separate.checksum_of(i % planes, i / planes, i)) << describe(form) << ' ' << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, LongRunsOfForm, testing::ValuesIn(forms_of_layout()), name_of_case);

// Backward's copy of a weight is read, and what is written lies elsewhere.
TEST(UntouchedRuns, AreCopiedToWhereTheirTileIsWritten) {
  const StateForm form;
  Random random(5);
  Tile tile(form, 1000), source(form, 1000);
  source.fill_masters(random, Numbers::ordinary);
  const auto gradient = gradients(form.gradient, 1000, random, Numbers::ordinary);
  const StepNumbers numbers = numbers_of(form.optimizer, Hyper{}, 1);
  TileView view = tile.view(gradient.data(), 0, 1000);
  view.weight.source = source.plane(0);
  TileUpdater(form).update(view, std::vector<NumbersRun>{{numbers, 130}, {numbers, 700, true}, {numbers, 1000}});
  EXPECT_EQ(std::memcmp(tile.plane(0) + 260, source.plane(0) + 260, 2 * (700 - 130)), 0);
  EXPECT_NE(std::memcmp(tile.plane(0), source.plane(0), 260), 0);
}

TEST(TileUpdaterDeathTest, RefusesNumbersThatChangeInsideABlockOfMoments) {
  const StateForm form{.moments = MomentForm::int8};
  Tile tile(form, 1000);
  const std::vector<std::byte> gradient(1000 * bytes_of(form.gradient));
  const StepNumbers numbers = numbers_of(form.optimizer, Hyper{}, 1);
  const TileUpdater updater(form);
  updater.update(tile.view(gradient.data(), 0, 1000), std::vector<NumbersRun>{{numbers, 512}, {numbers, 1000}});
  EXPECT_DEATH(
      updater.update(tile.view(gradient.data(), 0, 1000), std::vector<NumbersRun>{{numbers, 384}, {numbers, 1000}}),
      "inside a block of moments, at element 384");
  EXPECT_DEATH(updater.update(tile.view(gradient.data(), 0, 1000), std::vector<NumbersRun>{{numbers, 512}}),
               "elements without numbers");
}

}  // namespace
}  // namespace penstock::cpu_optim
