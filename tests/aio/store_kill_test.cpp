// Processes that make, open and train a store on real files, killed with SIGKILL at random moments: what they promised
// is there, bit for bit, and goes on.
//
// STORE_KILLS sets how many are killed (300 for the full claim).
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "aio/direct_folder.h"
#include "aio/make_engine.h"
#include "tests/aio/store_worker.h"
#include "tests/aio/test_files.h"
#include "tests/support/store_trainer.h"

namespace penstock::aio {
namespace {

uint64_t kills() {
  const char* asked = std::getenv("STORE_KILLS");
  return asked ? std::strtoull(asked, nullptr, 10) : 40;
}

// What a worker wrote before it was killed after `life`.
std::vector<std::string> promises_of(const std::string& verb, const std::vector<std::string>& folders,
                                     std::chrono::microseconds life) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  std::vector<std::string> words{STORE_WORKER, verb};
  words.insert(words.end(), folders.begin(), folders.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(ends[1]);
  std::this_thread::sleep_for(life);
  kill(child, SIGKILL);
  // The next owner must not need the dead one to be buried.
  std::string said;
  char piece[4096];
  for (ssize_t count; (count = read(ends[0], piece, sizeof(piece))) > 0;)
    said.append(piece, static_cast<size_t>(count));
  close(ends[0]);
  int how = 0;
  waitpid(child, &how, 0);
  EXPECT_TRUE(WIFSIGNALED(how) || WEXITSTATUS(how) == 0) << verb << " ended by itself with " << WEXITSTATUS(how);
  std::vector<std::string> lines;
  for (size_t at = 0, end; (end = said.find('\n', at)) != std::string::npos; at = end + 1) {
    lines.push_back(said.substr(at, end - at));
  }
  return lines;
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
    Result<MadeEngine> made = make_engine();
    Result<std::unique_ptr<TileStore>> store = TileStore::open(*made->engine, direct_folders(folders_), {});
    if (!store.ok()) {
      const std::string& why = store.status().message();
      const bool not_there = why.find("half-created") != std::string::npos || why.find("missing") != std::string::npos;
      EXPECT_TRUE(!created && not_there) << why;
      return false;
    }
    const uint64_t step = (*store)->payload().step;
    EXPECT_GE(step, acknowledged);
    if (step < steps_) plain_ = PlainTraining(shape_), steps_ = 0;
    StoreTrainer trainer(*made->engine, **store);
    expect_equal(trainer, step);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(trainer.step().ok());
    EXPECT_TRUE(trainer.settle().ok());
    expect_equal(trainer, step + 2);
    return true;
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
  std::mt19937_64 random(1);
  bool there = false;
  uint64_t in_creation = 0, in_recovery = 0, in_a_run = 0;
  for (uint64_t killed = 0; killed < kills() && !HasFailure(); ++killed) {
    SCOPED_TRACE(testing::Message() << "kill " << killed << ", seed 1");
    if (!there || killed % 5 == 0) {
      steps_ = 0, plain_ = PlainTraining(shape_);
      const auto said = promises_of("create", folders_, std::chrono::microseconds(random() % 50000));
      if (said.empty()) ++in_creation;
      there = check(!said.empty(), 0);
      continue;
    }
    // Some are killed while they still open what the one before has left.
    uint64_t acknowledged = 0;
    for (uint64_t lives = 1 + random() % 3; lives > 0; --lives, ++killed) {
      const auto said = promises_of("run", folders_, std::chrono::microseconds(random() % (lives > 1 ? 30000 : 90000)));
      if (!said.empty()) acknowledged = std::stoull(said.back());
      ++(said.empty() ? in_recovery : in_a_run);
    }
    ASSERT_TRUE(check(true, acknowledged));
  }
  std::printf("killed in creation %lu, while opening %lu, while training %lu\n", in_creation, in_recovery, in_a_run);
  EXPECT_GT(in_a_run, kills() / 8);
}

}  // namespace
}  // namespace penstock::aio
