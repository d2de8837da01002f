// Ranks of several hosts, each a process of its own that reaches the others over TCP alone: the contract of Collective,
// whole courses of training, and how ranks end one another.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/contracts/collective_contract.h"
#include "tests/support/rank_processes.h"

namespace penstock::engine {
namespace {

using test::RankEnd;
using test::RankProcesses;

bool is_free(uint32_t port) {
  const int listening = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<uint16_t>(port));
  const bool bound = ::bind(listening, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0;
  ::close(listening);
  return bound;
}

// Below those that the kernel gives to whoever connects.
uint32_t free_port() {
  static uint32_t next = static_cast<uint32_t>(::getpid()) * 4;
  uint32_t port;
  do {
    port = 10'000 + next++ % 20'000;
  } while (!is_free(port));
  return port;
}

std::vector<RankEnd> run_ranks(uint32_t ranks, const std::vector<std::string>& command,
                               const std::vector<uint32_t>& stopped = {}) {
  // Another test that has found the same port free has another secret.
  const uint32_t port = free_port();
  RankProcesses processes(ranks, command,
                          {"LOCAL_WORLD_SIZE=1", text("MASTER_PORT=", port),
                           text("PENSTOCK_SECRET=of process ", ::getpid(), " at ", port)});
  return processes.wait(stopped);
}

std::vector<RankEnd> run_ranks(uint32_t ranks, const std::string& check, const std::vector<uint32_t>& stopped = {}) {
  return run_ranks(ranks, std::vector<std::string>{COLLECTIVE_WORKER, check, "1"}, stopped);
}

class CollectiveOverTcp : public testing::TestWithParam<std::tuple<uint32_t, std::string>> {};

TEST_P(CollectiveOverTcp, KeepsItsContract) {
  const auto& [ranks, check] = GetParam();
  for (const RankEnd& end : run_ranks(ranks, check)) EXPECT_EQ(end.code + end.signal, 0) << end.said << " (seed 1)";
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectiveOverTcp,
                         testing::Combine(testing::Values(2, 3),
                                          testing::ValuesIn(CollectiveContract::names_of_checks())),
                         [](const auto& each) { return text(std::get<0>(each.param), "_", std::get<1>(each.param)); });

TEST(TcpRanks, LeaveTheBitsOfAPlainLoopOfAsManyRanks) {
  const std::pair<uint32_t, std::vector<std::string>> courses[] = {{2, {"2", "each"}}, {3, {"1", "each"}}};
  for (const auto& [ranks, stage] : courses) {
    for (const RankEnd& end : run_ranks(ranks, {RANKED_WORKER, "1", "4", stage[0], stage[1]})) {
      EXPECT_EQ(end.code + end.signal, 0) << "seed 1: " << end.said;
    }
  }
}

// "rank 1 on node1", where all of them are on this host.
std::string rank_here(uint32_t rank) {
  char name[64] = {};
  (void)::gethostname(name, sizeof name - 1);
  return text("rank ", rank, " on ", name);
}

// What the ranks other than the unlucky one, which is 1, say.
void expect_ended(const std::vector<RankEnd>& ends, const std::string& begin, const std::string& end) {
  for (uint32_t rank = 0; rank < ends.size(); ++rank) {
    if (rank == 1) continue;
    EXPECT_EQ(ends[rank].code, 1) << "rank " << rank;
    EXPECT_EQ(ends[rank].said.find(begin), 0u) << "rank " << rank << " said: " << ends[rank].said;
    EXPECT_NE(ends[rank].said.find(end), std::string::npos) << "rank " << rank << " said: " << ends[rank].said;
    EXPECT_EQ(std::count(ends[rank].said.begin(), ends[rank].said.end(), '\n'), 1) << ends[rank].said;
    EXPECT_LT(ends[rank].after_s, 30);
  }
}

TEST(TcpRanks, EndWithTheNameOfOneThatDies) {
  for (const auto& [when, step] : {std::pair{"die", "5\n"}, {"within_die", ""}}) {
    const std::vector<RankEnd> ends = run_ranks(3, when);
    EXPECT_EQ(ends[1].signal, SIGKILL);
    expect_ended(ends, rank_here(1) + " died in step " + step, "");
  }
}

TEST(TcpRanks, EndWithTheNameOfOneThatIsStopped) {
  expect_ended(run_ranks(3, "stop", {1}), rank_here(1) + " hangs in step 5", ": no sign of life for ");
}

TEST(TcpRanks, EndWithTheNameOfOneThatDoesNotCome) {
  expect_ended(run_ranks(3, "late"), rank_here(1) + " hangs in step 5: rank ", " for it: gather");
}

TEST(TcpRanks, EndWithWhatOneFailedOf) {
  const std::vector<RankEnd> ends = run_ranks(3, "fail");
  expect_ended(ends, rank_here(1) + " failed in step 5: read 4096 B at 0 of rank1.tiles: EIO", "");
  EXPECT_EQ(ends[1].said, ends[0].said);
}

TEST(TcpRanks, EndWhenOneHasLeft) {
  expect_ended(run_ranks(3, "leave"), rank_here(1) + " ended in step 5, while rank ", " waited for it");
}

TEST(TcpRanks, EndWhenOneGathersOtherShards) {
  for (const RankEnd& end : run_ranks(3, "unlike")) {
    EXPECT_EQ(end.code, 1);
    EXPECT_NE(end.said.find(" in step 5 gathers other shards than rank "), std::string::npos) << end.said;
  }
}

TEST(TcpRanks, NameThoseThatDoNotCome) {
  const std::vector<RankEnd> ends = run_ranks(3, "lonely");
  EXPECT_EQ(ends[0].said, "ranks: 2 of 3 came within 5 s; missing: rank 1\n");
  EXPECT_EQ(ends[2].code, 1);
}

TEST(TcpRanks, DoNotTakeInWhoDoesNotKnowTheirSecret) {
  const std::vector<RankEnd> ends = run_ranks(2, "stranger");
  EXPECT_EQ(ends[0].said, "ranks: 1 of 2 came within 8 s; missing: rank 1\n");
  EXPECT_EQ(ends[1].said, "ranks: rank 0 ended, or did not take rank 1 in\n");
}

// Each of the strangers is given seconds to say who it is, all together more than ranks wait for one another.
TEST(TcpRanks, MeetBesideStrangersThatSayNothing) {
  for (const RankEnd& end : run_ranks(2, "crowd")) EXPECT_EQ(end.code + end.signal, 0) << end.said;
}

TEST(TcpRanks, RefuseTwoOfOneNumber) {
  EXPECT_EQ(run_ranks(3, "same")[0].said, "ranks: two processes claim rank 1 of 3\n");
}

}  // namespace
}  // namespace penstock::engine
