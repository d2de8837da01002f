// Ranks with devices: the contract of Collective over NCCL, and how ranks end one another there. Both NCCL and CUDA are
// in plain memory, with delays drawn from a seed; everything above them is what runs on GPUs.
#include <gtest/gtest.h>

#include "tests/contracts/collective_contract.h"
#include "tests/support/rank_processes.h"

#ifdef PLAIN_NCCL

namespace penstock::engine {
namespace {

using test::RankEnd;
using test::RankProcesses;

std::vector<RankEnd> run_ranks(uint32_t ranks, const std::string& check, std::vector<std::string> environment = {},
                               const std::vector<uint32_t>& stopped = {}) {
  environment.insert(environment.end(),
                     {"PENSTOCK_NCCL=" PLAIN_NCCL, "PLAIN_NCCL_SEED=1", "PLAIN_CUDA_SLOW_KERNELS=1"});
  RankProcesses processes(ranks, {test::worker_or_mutant(NCCL_WORKER), check, "1", "device"}, environment);
  return processes.wait(stopped);
}

class CollectiveOverNccl : public testing::TestWithParam<std::tuple<uint32_t, std::string>> {};

TEST_P(CollectiveOverNccl, KeepsItsContract) {
  const auto& [ranks, check] = GetParam();
  for (const RankEnd& end : run_ranks(ranks, check)) EXPECT_EQ(end.code + end.signal, 0) << end.said << " (seed 1)";
}

// Of what is not carried, exchanges and barriers, nothing depends on the carrier.
std::vector<std::tuple<uint32_t, std::string>> cases() {
  std::vector<std::tuple<uint32_t, std::string>> all;
  for (uint32_t ranks : {1, 2, 3, 4, 8}) {
    for (const auto& [name, check] : CollectiveContract::checks()) {
      const bool is_carried = name.starts_with("gather") || name.starts_with("reduce") || name == "several";
      if (is_carried || ranks == 2) all.emplace_back(ranks, name);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectiveOverNccl, testing::ValuesIn(cases()),
                         [](const auto& each) { return text(std::get<0>(each.param), "_", std::get<1>(each.param)); });

// What the ranks other than the unlucky one, which is 1, say. They do not wait until NCCL has taken too long.
void expect_ended(const std::vector<RankEnd>& ends, const std::string& sentence) {
  for (uint32_t rank = 0; rank < ends.size(); ++rank) {
    if (rank == 1) continue;
    EXPECT_EQ(ends[rank].code, 1) << "rank " << rank;
    EXPECT_EQ(ends[rank].said.find(sentence), 0u) << "rank " << rank << " said: " << ends[rank].said;
    EXPECT_EQ(std::count(ends[rank].said.begin(), ends[rank].said.end(), '\n'), 1) << ends[rank].said;
    EXPECT_LT(ends[rank].after_s, 15);
  }
}

// The others are inside NCCL then, which does not come back by itself; and NCCL may notice first, or never.
TEST(NcclRanks, EndWithTheNameOfOneThatDiesWithinAGather) {
  for (const char* tells : {"0", "1"}) {
    const std::vector<RankEnd> ends =
        run_ranks(3, "within_die", {"PLAIN_NCCL_STUCK=1:5", text("PLAIN_NCCL_TELLS=", tells)});
    EXPECT_EQ(ends[1].signal, SIGKILL);
    expect_ended(ends, "rank 1 died in step 5\n");
  }
}

TEST(NcclRanks, EndWithTheNameOfOneThatIsStoppedWithinAGather) {
  expect_ended(run_ranks(3, "within_stop", {"PLAIN_NCCL_STUCK=1:5"}, {1}),
               "rank 1 hangs in step 5: no sign of life for ");
}

TEST(NcclRanks, EndWithTheNameOfOneThatDiesBetweenOperations) {
  const std::vector<RankEnd> ends = run_ranks(4, "die");
  EXPECT_EQ(ends[1].signal, SIGKILL);
  expect_ended(ends, "rank 1 died in step 5\n");
}

// All live and none comes out: a switch that has lost a message, say.
TEST(NcclRanks, EndWhereAGatherDoesNot) {
  for (const RankEnd& end : run_ranks(3, "stuck", {"PLAIN_NCCL_STUCK=1:5"})) {
    EXPECT_EQ(end.code, 1);
    EXPECT_NE(end.said.find(" failed in step 5: gather of 2000 B: NCCL has not carried it within 5 s"),
              std::string::npos)
        << end.said;
  }
}

TEST(NcclRanks, EndWithWhatNcclRefusesOne) {
  const std::pair<const char*, const char*> cases[] = {
      {"ncclCommInitRankConfig", "rank 1 failed in step 0: NCCL: communicator of 3 ranks: as the test asked\n"},
      {"meeting", "rank 1 failed in step 0: NCCL: communicator of 3 ranks: as the test asked\n"},
      {"ncclSend", "rank 1 failed in step 1: gather of 2000 B: NCCL: send 1000 B to rank 0: as the test asked\n"},
      {"ncclGroupEnd", "rank 1 failed in step 1: gather of 2000 B: NCCL: a group of 4 messages: as the test asked\n"}};
  for (const auto& [call, said] : cases) {
    SCOPED_TRACE(call);
    const std::vector<RankEnd> ends = run_ranks(3, "die", {text("PLAIN_NCCL_REFUSES=", call, ":1")});
    for (const RankEnd& end : ends) {
      EXPECT_EQ(end.code, 1);
      EXPECT_NE(end.said.find(said), std::string::npos) << end.said;
    }
  }
}

TEST(NcclRanks, SayWhatIsMissing) {
  for (const RankEnd& end : run_ranks(2, "gather", {"PENSTOCK_NCCL=/nowhere/libnccl.so.2"})) {
    EXPECT_EQ(end.said, "PENSTOCK_NCCL: NCCL: not found: /nowhere/libnccl.so.2: there is no such file\n");
  }
}

TEST(NcclRanks, HaveADeviceEachOrNone) {
  const std::vector<RankEnd> ends = run_ranks(3, "unequal");
  EXPECT_EQ(ends[0].said, "ranks: rank 0 computes on a device, and rank 1 on none\n");
  for (size_t rank = 1; rank < ends.size(); ++rank)
    EXPECT_EQ(ends[rank].said, "ranks: rank 0 ended before all had come\n") << rank;
}

}  // namespace
}  // namespace penstock::engine

#endif
