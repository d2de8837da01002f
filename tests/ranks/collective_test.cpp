// Ranks as processes of this host, and one alone: the contract of Collective, and how ranks end one another.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/contracts/collective_contract.h"
#include "tests/support/rank_processes.h"

namespace penstock::engine {
namespace {

using test::RankEnd;
using test::RankProcesses;

std::vector<RankEnd> run_ranks(uint32_t ranks, const std::string& check, const std::vector<uint32_t>& stopped = {}) {
  RankProcesses processes(ranks, {COLLECTIVE_WORKER, check, "1"});
  return processes.wait(stopped);
}

class CollectiveOf : public testing::TestWithParam<std::tuple<uint32_t, std::string>> {};

TEST_P(CollectiveOf, KeepsItsContract) {
  const auto& [ranks, check] = GetParam();
  for (const RankEnd& end : run_ranks(ranks, check)) EXPECT_EQ(end.code + end.signal, 0) << end.said << " (seed 1)";
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectiveOf,
                         testing::Combine(testing::Values(1, 2, 3, 4, 8),
                                          testing::ValuesIn(CollectiveContract::names_of_checks())),
                         [](const auto& each) { return text(std::get<0>(each.param), "_", std::get<1>(each.param)); });

// What the ranks other than the unlucky one, which is 1, say.
void expect_ended(const std::vector<RankEnd>& ends, const std::string& sentence, double within_s = 30) {
  for (uint32_t rank = 0; rank < ends.size(); ++rank) {
    if (rank == 1) continue;
    EXPECT_EQ(ends[rank].code, 1) << "rank " << rank;
    EXPECT_EQ(ends[rank].said.find(sentence), 0u) << "rank " << rank << " said: " << ends[rank].said;
    EXPECT_EQ(std::count(ends[rank].said.begin(), ends[rank].said.end(), '\n'), 1) << ends[rank].said;
    EXPECT_LT(ends[rank].after_s, within_s);
  }
}

TEST(HostRanks, EndWithTheNameOfOneThatDies) {
  for (uint32_t ranks : {2, 4}) {
    const std::vector<RankEnd> ends = run_ranks(ranks, "die");
    EXPECT_EQ(ends[1].signal, SIGKILL);
    expect_ended(ends, "rank 1 died in step 5");
  }
}

TEST(HostRanks, EndWithTheNameOfOneThatIsStopped) {
  expect_ended(run_ranks(3, "stop", {1}), "rank 1 hangs in step 5: no sign of life for ");
}

TEST(HostRanks, EndWithTheNameOfOneThatDoesNotCome) {
  const std::vector<RankEnd> ends = run_ranks(3, "late");
  expect_ended(ends, "rank 1 hangs in step 5: rank ");
  EXPECT_EQ(ends[1].said.find("rank 1 hangs in step 5: rank "), 0u) << ends[1].said;
}

TEST(HostRanks, EndWithTheNameOfOneWhoseTrainerHangs) {
  expect_ended(run_ranks(3, "away"), "rank 1 hangs in step 5: its trainer has been computing for ");
}

TEST(HostRanks, EndWithTheNameOfOneInWhoseStepNothingEnds) {
  expect_ended(run_ranks(3, "still"), "rank 1 hangs in step 5: nothing has ended in its engine for ");
}

TEST(HostRanks, WaitForOneInWhoseStepSomethingEnds) {
  expect_ended(run_ranks(3, "slow"), "rank 1 failed in step 5: done");
}

TEST(HostRanks, EndWithWhatOneFailedOf) {
  const std::vector<RankEnd> ends = run_ranks(3, "fail");
  expect_ended(ends, "rank 1 failed in step 5: read 4096 B at 0 of rank1.tiles: EIO");
  EXPECT_EQ(ends[1].said, ends[0].said);
}

TEST(HostRanks, EndWhenOneHasLeft) { expect_ended(run_ranks(3, "leave"), "rank 1 ended in step 5, while rank "); }

TEST(HostRanks, EndOneByOneWhereNoneIsWaitedFor) {
  for (const RankEnd& end : run_ranks(3, "one_by_one")) EXPECT_EQ(end.code + end.signal, 0) << end.said;
}

TEST(HostRanks, EndWhenOneBeginsAnotherOperation) {
  const std::vector<RankEnd> ends = run_ranks(2, "differ");
  for (const RankEnd& end : ends) {
    EXPECT_EQ(end.code, 1);
    EXPECT_NE(end.said.find("begins another operation than rank"), std::string::npos) << end.said;
  }
}

TEST(HostRanks, EndWhenOneGathersOtherShards) {
  const std::vector<RankEnd> ends = run_ranks(3, "unlike");
  for (const RankEnd& end : ends) {
    EXPECT_EQ(end.code, 1);
    EXPECT_NE(end.said.find(" in step 5 gathers other shards than rank "), std::string::npos) << end.said;
  }
}

TEST(HostRanks, NameThoseThatDoNotCome) {
  const std::vector<RankEnd> ends = run_ranks(3, "lonely");
  EXPECT_EQ(ends[0].said, "ranks: 2 of 3 came within 5 s; missing: rank 1\n");
  EXPECT_EQ(ends[2].code, 1);
}

TEST(HostRanks, RefuseTwoOfOneNumber) {
  const std::vector<RankEnd> ends = run_ranks(3, "same");
  EXPECT_EQ(ends[0].said, "ranks: two processes claim rank 1 of 3\n");
}

// Sockets and shared memory have no names in a file system; those in the kernel's own name space end with their owners.
TEST(HostRanks, LeaveNothingBehind) {
  RankProcesses processes(4, {COLLECTIVE_WORKER, "die", "1"});
  processes.wait();
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    EXPECT_EQ(line.find(text(":", processes.port(), ":")), std::string::npos) << line;
  }
}

Environment given(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
}

TEST(RankPlace, IsThatOfTorchrun) {
  const Result<RankPlace> place = find_rank_place(given({{"RANK", "2"},
                                                         {"WORLD_SIZE", "4"},
                                                         {"LOCAL_WORLD_SIZE", "4"},
                                                         {"MASTER_ADDR", "127.0.0.1"},
                                                         {"MASTER_PORT", "29500"},
                                                         {"TORCHELASTIC_RUN_ID", "none"},
                                                         {"TORCHELASTIC_RESTART_COUNT", "1"}}));
  ASSERT_TRUE(place.ok()) << place.status().message();
  EXPECT_EQ(place->rank, 2u);
  EXPECT_EQ(place->ranks, 4u);
  EXPECT_EQ(place->meeting, "127.0.0.1:29500:none:1");
}

TEST(RankPlace, IsThatOfSlurm) {
  const Result<RankPlace> place = find_rank_place(given({{"SLURM_PROCID", "1"},
                                                         {"SLURM_NTASKS", "2"},
                                                         {"SLURM_NNODES", "1"},
                                                         {"SLURM_JOB_ID", "77"},
                                                         {"SLURM_STEP_ID", "0"}}));
  ASSERT_TRUE(place.ok()) << place.status().message();
  EXPECT_EQ(place->rank, 1u);
  EXPECT_EQ(place->ranks, 2u);
  EXPECT_EQ(place->meeting, "slurm:77:0");
}

TEST(RankPlace, IsOnOneOfSeveralHosts) {
  std::map<std::string, std::string> torchrun = {{"RANK", "2"},
                                                 {"WORLD_SIZE", "4"},
                                                 {"LOCAL_WORLD_SIZE", "2"},
                                                 {"MASTER_ADDR", "10.0.0.1"},
                                                 {"MASTER_PORT", "29500"},
                                                 {"LOCAL_RANK", "0"},
                                                 {"GROUP_RANK", "1"}};
  const Result<RankPlace> place = find_rank_place(given(torchrun));
  ASSERT_TRUE(place.ok()) << place.status().message();
  EXPECT_EQ(place->hosts, 2u);
  EXPECT_EQ(place->ranks_here(), 2u);
  EXPECT_EQ(place->host(), 1u);
  EXPECT_EQ(place->rank_here(), 0u);
  EXPECT_EQ(place->address, "10.0.0.1");
  EXPECT_EQ(place->port, 29500u);
  torchrun["TORCHELASTIC_USE_AGENT_STORE"] = "True";  // which is there
  EXPECT_EQ(find_rank_place(given(torchrun))->port, 29501u);
  const Result<RankPlace> task = find_rank_place(given({{"SLURM_PROCID", "1"},
                                                        {"SLURM_NTASKS", "2"},
                                                        {"SLURM_NNODES", "2"},
                                                        {"SLURM_JOB_ID", "77"},
                                                        {"SLURM_STEP_ID", "0"},
                                                        {"MASTER_ADDR", "n1"},
                                                        {"MASTER_PORT", "29500"}}));
  ASSERT_TRUE(task.ok()) << task.status().message();
  EXPECT_EQ(task->hosts, 2u);
}

TEST(RankPlace, IsOneRankWhereNothingIsSet) {
  const Result<RankPlace> place = find_rank_place(given({}));
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(place->ranks, 1u);
}

TEST(RankPlace, RefusesWhatHasNoMeaning) {
  const std::pair<std::map<std::string, std::string>, std::string> cases[] = {
      {{{"RANK", "0"}}, "ranks: the environment variable WORLD_SIZE is not set"},
      {{{"RANK", "x"}, {"WORLD_SIZE", "2"}}, "ranks: the environment variable RANK is 'x', a whole number expected"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "ranks: rank 2 of 2, less than 2 expected"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "ranks: 0 ranks, 1 to 64 expected"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "ranks: the environment variable MASTER_PORT is not set"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}},
       "ranks: several hosts, and the environment variable MASTER_ADDR is not set"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "3"}, {"MASTER_PORT", "1"}},
       "ranks: 3 of 4 ranks are on this host"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "65536"}},
       "ranks: MASTER_PORT 65536, 1 to 65534 expected"},
      {{{"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "4"},
        {"SLURM_NNODES", "2"},
        {"SLURM_JOB_ID", "77"},
        {"SLURM_STEP_ID", "0"},
        {"MASTER_ADDR", "n1"},
        {"MASTER_PORT", "29500"},
        {"SLURM_LOCALID", "0"},
        {"SLURM_NODEID", "1"}},
       "ranks: rank 1 of 4 on 2 hosts has SLURM_LOCALID 0, 1 expected"},
  };
  for (const auto& [values, message] : cases) {
    EXPECT_EQ(find_rank_place(given(values)).status().message(), message);
  }
}

}  // namespace
}  // namespace penstock::engine
