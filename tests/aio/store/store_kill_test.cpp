// Processes that make, open and train a store on real files, killed with SIGKILL at random moments: what they promised
// is there, bit for bit, and goes on.
//
// STORE_KILLS sets how many are killed (300 for the full claim).
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <random>

#include "aio/direct_folder.h"
#include "aio/make_io_engine.h"
#include "tests/aio/store/store_worker.h"
#include "tests/aio/test_files.h"
#include "tests/support/store_trainer.h"
#include "tests/support/worker_process.h"

namespace penstock::aio {
namespace {

uint64_t kills() {
  const char* asked = std::getenv("STORE_KILLS");
  return asked ? std::strtoull(asked, nullptr, 10) : 40;
}

// What a worker has promised that is killed a while after so many promises.
std::vector<Said> killed_after(const std::string& verb, const std::vector<std::string>& folders, size_t promises,
                               std::chrono::microseconds and_then) {
  std::vector<std::string> words{STORE_WORKER, verb};
  words.insert(words.end(), folders.begin(), folders.end());
  return killed(
      std::move(words), [&](const std::vector<Said>& said) { return said.size() >= promises; }, and_then);
}

class StoreKill : public testing::Test {
 protected:
  StoreKill() : shape_(worker_shape()), plain_(shape_) {
    for (const char* drive : {"a", "b", "c"}) {
      folders_.push_back(scratch_ / drive);
      std::filesystem::create_directory(folders_.back());
    }
  }

  // Opens as the next run would. Whether there is a store; what was promised of it is checked.
  bool check(bool created, uint64_t acknowledged) {
    Result<MadeIoEngine> made = make_io_engine();
    Result<std::unique_ptr<TileStore>> store = TileStore::open(*made->engine, direct_folders(folders_), {});
    if (!store.ok()) {
      EXPECT_TRUE(!created && was_never_created(store.status())) << store.status().message();
      return false;
    }
    const uint64_t step = (*store)->payload().step;
    EXPECT_GE(step, acknowledged);
    if (step < steps_) start_anew();
    StoreTrainer trainer(*made->engine, **store);
    expect_equal(trainer, step);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(trainer.step().ok());
    EXPECT_TRUE(trainer.settle().ok());
    expect_equal(trainer, step + 2);
    return true;
  }

  void start_anew() {
    plain_ = PlainTraining(shape_);
    steps_ = 0;
  }

  void expect_equal(StoreTrainer& trainer, uint64_t step) {
    plain_.run(step - steps_);
    steps_ = step;
    Result<std::vector<std::vector<std::byte>>> tiles = trainer.read_all();
    ASSERT_TRUE(tiles.ok()) << tiles.status().message();
    for (TileId tile = 0; tile < tiles->size(); ++tile) ASSERT_EQ((*tiles)[tile], plain_.tile(tile)) << "tile " << tile;
  }

  ScratchFolder scratch_;
  std::vector<std::string> folders_;
  StoreShape shape_;
  PlainTraining plain_;
  uint64_t steps_ = 0;  // of plain_
};

TEST_F(StoreKill, LeavesWhatWasPromisedWheneverItComes) {
  using std::chrono::microseconds;
  std::mt19937_64 random(1);
  auto up_to = [&](microseconds most) { return microseconds(random() % static_cast<uint64_t>(most.count() + 1)); };
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(killed_after("create", folders_, 1, microseconds(0)).size(), 1u);
  const auto creation = std::chrono::duration_cast<microseconds>(std::chrono::steady_clock::now() - begin);

  ASSERT_TRUE(check(true, 0));
  uint64_t in_creation = 0, while_opening = 0, while_training = 0;
  for (uint64_t round = 0; in_creation + while_opening + while_training < kills() && !HasFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round << ", seed 1");
    if (round % 4 == 0) {
      const bool created = !killed_after("create", folders_, 0, up_to(creation)).empty();
      if (!created) ++in_creation;
      start_anew();
      // The next one is left to end, however slow the machine has become.
      if (!check(created, 0)) {
        ASSERT_EQ(killed_after("create", folders_, 1, microseconds(0)).size(), 1u);
        ASSERT_TRUE(check(true, 0));
      }
    }
    // Some are killed while they still open what the one before has left.
    uint64_t acknowledged = 0;
    for (uint64_t lives = 1 + random() % 3; lives > 0; --lives) {
      const auto said = killed_after("run", folders_, lives > 1 ? random() % 2 : random() % 6, up_to(creation / 2));
      if (!said.empty()) acknowledged = std::stoull(said.back().line);
      ++(said.empty() ? while_opening : while_training);
    }
    ASSERT_TRUE(check(true, acknowledged));
  }
  std::printf("killed in creation %lu, while opening or in the first step %lu, while training %lu\n", in_creation,
              while_opening, while_training);
  EXPECT_GT(in_creation, 0u);
  EXPECT_GT(while_opening, 0u);
  EXPECT_GT(while_training, kills() / 8);
}

}  // namespace
}  // namespace penstock::aio
