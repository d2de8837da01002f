// Several ranks keep steps, and are killed as they do: a step is kept on all of them or on none.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/aio/test_files.h"
#include "tests/support/rank_processes.h"

namespace penstock::engine {
namespace {

using test::RankEnd;
using test::RankProcesses;

class KeptByRanks : public testing::Test {
 protected:
  KeptByRanks() : folders_{scratch_ / "a", scratch_ / "b"} {
    for (const std::string& folder : folders_) std::filesystem::create_directory(folder);
    for (const RankEnd& end : run("create", 0)) EXPECT_EQ(end.code + end.signal, 0) << end.said;
  }

  std::vector<RankEnd> run(const char* what, uint64_t steps, const std::vector<std::string>& environment = {}) {
    std::vector<std::string> words = {test::worker_or_mutant(RANKED_WORKER), "1", text(steps), "2", "each", what};
    words.insert(words.end(), folders_.begin(), folders_.end());
    RankProcesses processes(2, words, environment);
    return processes.wait();
  }
  // Every rank says so when the run goes on by so many steps, and keeps the last. Nothing is removed that is not named.
  void expect_then(const std::string& said, uint64_t steps = 1) {
    for (const RankEnd& end : run("keep", steps)) {
      EXPECT_EQ(end.code + end.signal, 0) << end.said;
      EXPECT_NE(end.said.find(said), std::string::npos) << end.said;
      const bool is_named = said.find(" is removed") != std::string::npos;
      EXPECT_EQ(end.said.find(" is removed") != std::string::npos, is_named) << end.said;
    }
  }
  void kill_at(const std::string& dies, const char* what = "keep", uint64_t steps = 1) {
    const std::vector<RankEnd> ends = run(what, steps, {"DIES=" + dies});
    const uint32_t victim = dies.front() == '1' ? 1 : 0;
    EXPECT_EQ(ends[victim].signal, SIGKILL) << ends[victim].said;
    EXPECT_EQ(ends[1 - victim].code, 1) << ends[1 - victim].said;
  }

  aio::ScratchFolder scratch_;
  std::vector<std::string> folders_;
};

// Barriers come in pairs: when all have their copies, and when all of these count.
TEST_F(KeptByRanks, AStepIsOnAllOrOnNoneAtEveryBarrier) {
  kill_at("1 0 before");
  expect_then("kept\n");  // step 1 nowhere
  kill_at("1 0 after");   // rank 0's copy of step 3 counts already
  expect_then("the snapshot of step 3 is removed: rank 1 had none\nkept 2\n");
  kill_at("0 1 before");
  expect_then("kept 2 4 5\n");
}

// Of a rollback: when all have found the step, have marked that they go back, and have gone back.
TEST_F(KeptByRanks, GoBackTogetherWhereverTheyAreKilled) {
  expect_then("kept\n", 2);
  expect_then("kept 2\n", 2);
  kill_at("1 0 after", "back", 2);  // rank 0 alone has marked it
  expect_then("opened 4\n", 0);
  kill_at("1 1 after", "back", 2);  // rank 0 alone has gone back
  expect_then("back at 2\n", 1);
  // Step 4 comes again, in the place of the one that was kept before: rank 1's is no other half of rank 0's.
  kill_at("1 0 after");
  expect_then("the snapshot of step 4 is removed: rank 1 had none\nkept 2 3\n", 0);
  kill_at("0 2 after", "back", 2);  // rank 0 alone still has its mark
  for (const RankEnd& end : run("keep", 0)) {
    EXPECT_EQ(end.said.find("back at"), std::string::npos) << end.said;
    EXPECT_NE(end.said.find("opened 2\n"), std::string::npos) << end.said;
  }
}

}  // namespace
}  // namespace penstock::engine
