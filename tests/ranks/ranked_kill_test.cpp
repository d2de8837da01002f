// Ranks that share folders are killed: the others end with its name, and what all of them have is what a run that was
// never disturbed has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <sstream>
#include <thread>

#include "tests/aio/test_files.h"
#include "tests/support/instrumented.h"
#include "tests/support/rank_processes.h"

namespace penstock::engine {
namespace {

using test::RankEnd;
using test::RankProcesses;

// Of each number of ranks; hundreds of them by hand.
uint64_t kills() {
  const char* given = std::getenv("PENSTOCK_KILLS");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : test::kStride == 1 ? 10 : 2;
}

uint64_t number_behind(const std::string& said, const std::string& word) {
  uint64_t last = 0;
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(word)) last = std::stoull(line.substr(word.size()));
  }
  return last;
}

struct KilledRanks {
  uint32_t ranks = 2, group_ranks = 2;
  uint64_t seed = 1;
};

class RankedKill : public testing::TestWithParam<KilledRanks> {
 protected:
  RankedKill() : folders_{scratch_ / "a", scratch_ / "b"} {
    for (const std::string& folder : folders_) std::filesystem::create_directory(folder);
  }

  std::vector<std::string> command(uint64_t steps, const char* what) const {
    std::vector<std::string> words = {test::worker_or_mutant(RANKED_WORKER), text(seed_), text(steps),
                                      text(GetParam().group_ranks),          "each",      what};
    words.insert(words.end(), folders_.begin(), folders_.end());
    return words;
  }
  void create() {
    durable_ = 0;
    for (const std::string& folder : folders_) {
      std::filesystem::remove_all(folder);
      std::filesystem::create_directory(folder);
    }
    RankProcesses processes(GetParam().ranks, command(0, "create"));
    for (const RankEnd& end : processes.wait()) ASSERT_EQ(end.code + end.signal, 0) << end.said;
  }
  // What those that were not killed say at last, and what was durable before.
  void expect_ended(const std::vector<RankEnd>& ends, uint32_t victim) {
    EXPECT_EQ(ends[victim].signal, SIGKILL) << ends[victim].said;
    for (uint32_t rank = 0; rank < ends.size(); ++rank) {
      durable_ = std::max(durable_, number_behind(ends[rank].said, "durable "));
      if (rank == victim) continue;
      EXPECT_EQ(ends[rank].code, 1) << ends[rank].said;
      const std::string named = text("rank ", victim, " died");
      const bool is_named = ends[rank].said.find(named) != std::string::npos ||
                            ends[rank].said.find("before all had come") != std::string::npos;
      EXPECT_TRUE(is_named) << "rank " << rank << ": " << ends[rank].said;
    }
  }
  // Opens as the next run would, compares every word, and goes on.
  std::vector<RankEnd> go_on(uint64_t steps = 2) {
    RankProcesses processes(GetParam().ranks, command(steps, "live"));
    std::vector<RankEnd> ends = processes.wait();
    for (const RankEnd& end : ends) {
      EXPECT_EQ(end.code + end.signal, 0) << end.said;
      EXPECT_GE(number_behind(end.said, "opened "), durable_) << end.said;
    }
    durable_ = number_behind(ends[0].said, "opened ") + steps;
    return ends;
  }

  aio::ScratchFolder scratch_;
  std::vector<std::string> folders_;
  std::mt19937_64 random_{GetParam().seed};
  uint64_t seed_ = 1;  // of the course
  uint64_t durable_ = 0;
};

TEST_P(RankedKill, LosesNothingThatWasDurableWhicheverRankItHits) {
  for (uint64_t kill = 0; kill < kills() && !HasFailure(); ++kill) {
    SCOPED_TRACE(text("kill ", kill, ", seed ", GetParam().seed));
    if (kill % 5 == 0) {
      seed_ = 1 + random_() % 1000;
      ASSERT_NO_FATAL_FAILURE(create());
    }
    const auto victim = static_cast<uint32_t>(random_() % GetParam().ranks);
    const char* const begun[] = {"opened ", "goes on", "durable "};
    const std::string until = begun[random_() % 3];
    RankProcesses processes(GetParam().ranks, command(1000, "live"));
    processes.read_until([&] { return processes.said(victim).find(until) != std::string::npos; });
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 150'000));
    processes.kill(victim);
    expect_ended(processes.wait(), victim);
    if (kill % 2 == 1) go_on();
  }
}

// Barriers come in pairs: when all have flushed their data, and when all have flushed their roots.
TEST_P(RankedKill, BringsAllRanksToTheStepThatAllHaveAtEveryBarrier) {
  for (uint64_t barrier = 2; barrier < 4; ++barrier) {
    for (const char* when : {"before", "after"}) {
      const auto victim = static_cast<uint32_t>(random_() % GetParam().ranks);
      seed_ = 1 + random_() % 1000;
      SCOPED_TRACE(text("rank ", victim, " dies ", when, " barrier ", barrier, ", course ", seed_));
      ASSERT_NO_FATAL_FAILURE(create());
      RankProcesses processes(GetParam().ranks, command(1000, "live"),
                              {text("DIES=", victim, " ", barrier, " ", when)});
      expect_ended(processes.wait(), victim);
      const std::vector<RankEnd> ends = go_on();
      for (uint32_t rank = 0; rank < ends.size(); ++rank) {
        const bool goes_back = ends[rank].said.find("was not committed by all ranks") != std::string::npos;
        // Before all have flushed nobody has a root; then the victim alone has none.
        if (barrier != 2) continue;
        EXPECT_EQ(goes_back, std::string(when) == "after" && rank != victim) << ends[rank].said;
      }
    }
  }
}

// Rank 1's file of one run is put beside rank 0's of another.
TEST_P(RankedKill, RefusesStoresOfSeveralRuns) {
  ASSERT_NO_FATAL_FAILURE(create());
  for (const std::string& folder : folders_) std::filesystem::rename(folder + "/rank1.tiles", folder + "/other");
  RankProcesses again(GetParam().ranks, command(0, "create"));
  for (const RankEnd& end : again.wait()) {
    EXPECT_EQ(end.code, 1);
    EXPECT_EQ(end.said.find("rank 0 in step 0: "), 0u) << end.said;  // whose store is there still
  }
  for (const std::string& folder : folders_) std::filesystem::remove(folder + "/rank0.tiles");
  for (uint32_t rank = 2; rank < GetParam().ranks; ++rank) {
    for (const std::string& folder : folders_) std::filesystem::remove(folder + text("/rank", rank, ".tiles"));
  }
  for (const std::string& folder : folders_) std::filesystem::remove(folder + "/rank1.tiles");
  RankProcesses anew(GetParam().ranks, command(0, "create"));
  for (const RankEnd& end : anew.wait()) ASSERT_EQ(end.code, 0) << end.said;
  for (const std::string& folder : folders_) std::filesystem::rename(folder + "/other", folder + "/rank1.tiles");
  RankProcesses mixed(GetParam().ranks, command(1, "live"));
  for (const RankEnd& end : mixed.wait()) {
    EXPECT_EQ(end.code, 1);
    EXPECT_NE(end.said.find("rank 1: its store belongs to run "), std::string::npos) << end.said;
  }
}

TEST_P(RankedKill, RefusesStoresOfAnotherNumberOfRanks) {
  ASSERT_NO_FATAL_FAILURE(create());
  std::vector<std::string> words = command(1, "live");
  words[3] = "1";
  RankProcesses alone(1, words);
  const std::vector<RankEnd> ends = alone.wait();
  EXPECT_EQ(ends[0].code, 1);
  EXPECT_NE(ends[0].said.find("holds another model"), std::string::npos) << ends[0].said;
  for (const std::string& folder : folders_) std::filesystem::remove(folder + "/rank1.tiles");
  RankProcesses without(GetParam().ranks, command(1, "live"));
  for (const RankEnd& end : without.wait()) {
    EXPECT_EQ(end.said.find("rank 1 in step 0: "), 0u) << end.said;
    EXPECT_NE(end.said.find("rank1.tiles is missing"), std::string::npos) << end.said;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, RankedKill, testing::Values(KilledRanks{2, 2, 1}, KilledRanks{4, 2, 2}),
                         [](const auto& each) { return each.param.ranks == 2 ? "two" : "four"; });

}  // namespace
}  // namespace penstock::engine
