// NCCL itself, on the GPUs of this machine: with one, what a rank says to itself; with more, what they carry among
// them. Skipped where there is no GPU, or no NCCL.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <optional>

#include "gpu/cuda_device.h"
#include "runtime/engine/ranks/nccl_communicator.h"
#include "tests/contracts/collective_contract.h"
#include "tests/support/rank_processes.h"

namespace penstock::engine {
namespace {

// Why not here.
Status usable() {
  PENSTOCK_TRY(gpu::usable(gpu::find_cuda(), 0));
  return NcclLibrary::open().status();
}

#define SKIP_WITHOUT_GPU() \
  if (const Status here = usable(); !here.ok()) GTEST_SKIP() << here.message()

void expect_contract(uint32_t ranks) {
  for (const auto& [check, unused] : CollectiveContract::checks()) {
    test::RankProcesses processes(ranks, {COLLECTIVE_WORKER, check, "1", "device"});
    for (const test::RankEnd& end : processes.wait()) {
      EXPECT_EQ(end.code + end.signal, 0) << check << " by " << ranks << " ranks: " << end.said << " (seed 1)";
    }
  }
}

TEST(NcclOnGpu, KeepsTheContractOfCollectiveWithOneRank) {
  SKIP_WITHOUT_GPU();
  expect_contract(1);
}

TEST(NcclOnGpu, KeepsTheContractOfCollectiveAmongAllGpus) {
  SKIP_WITHOUT_GPU();
  const int devices = gpu::find_cuda().devices;
  if (devices < 2) GTEST_SKIP() << "this machine has one GPU";
  expect_contract(static_cast<uint32_t>(devices));
}

// Whole steps on the GPUs, the trainer on the host. Alone a rank gathers nothing, but adds up by the same collective.
void expect_bits(uint32_t ranks, const std::string& gathers) {
  test::RankProcesses processes(ranks, {RANKED_GPU_WORKER, "1", "3", text(ranks), gathers},
                                {"ON_DEVICE=0", "GATHERS=device"});
  for (const test::RankEnd& end : processes.wait()) EXPECT_EQ(end.code + end.signal, 0) << end.said;
}

TEST(NcclOnGpu, LeavesTheBitsOfARanksSteps) {
  SKIP_WITHOUT_GPU();
  expect_bits(1, "each");
}

TEST(NcclOnGpu, LeavesTheBitsOfStepsWhoseWeightsAreGatheredAmongGpus) {
  SKIP_WITHOUT_GPU();
  const int devices = gpu::find_cuda().devices;
  if (devices < 2) GTEST_SKIP() << "this machine has one GPU";
  for (const char* gathers : {"each", "once"}) expect_bits(static_cast<uint32_t>(std::min(devices, 4)), gathers);
}

// One GPU has nobody else to send to. Every call that ranks make is made, and what comes is what was sent.
TEST(NcclOnGpu, SendsToItself) {
  SKIP_WITHOUT_GPU();
  constexpr uint64_t kBytes = 3 << 20;
  auto never = [] { return Status(); };
  auto wait = [&] { return LongWait(never, std::chrono::seconds(60), "NCCL has not answered"); };
  const std::shared_ptr<const NcclLibrary> library = NcclLibrary::open().value();
  std::unique_ptr<gpu::Backend> backend = gpu::open_cuda_backend(0).value();
  ASSERT_TRUE(backend->enter_thread().ok());
  const std::span<std::byte> memory = backend->reserve(2 * kBytes).value();
  const std::span<std::byte> host = backend->pinned(2 * kBytes).value();
  const Stream stream = backend->make_stream().value();
  for (uint64_t i = 0; i < kBytes; ++i) host[i] = static_cast<std::byte>(i * 2'654'435'761u >> 13);
  ASSERT_TRUE(backend->copy(memory.data(), host.data(), kBytes, gpu::CopyWay::host_to_device, stream).ok());
  {
    nccl::UniqueId id;
    ASSERT_EQ(library->call().get_unique_id(&id), nccl::Answer::success);
    auto made = NcclCommunicator::make(library, id, {.rank = 0, .ranks = 1, .meeting = {}}, wait());
    ASSERT_TRUE(made.ok()) << made.status().message();
    using Message = NcclCommunicator::Message;
    const Message messages[] = {{Message::Way::send, 0, memory.first(kBytes)},
                                {Message::Way::receive, 0, memory.subspan(kBytes, kBytes)}};
    const Status put = (*made)->put(messages, stream, wait());
    ASSERT_TRUE(put.ok()) << put.message();
    ASSERT_TRUE(
        backend->copy(host.data() + kBytes, memory.data() + kBytes, kBytes, gpu::CopyWay::device_to_host, stream).ok());
    const Event end = backend->record(stream).value();
    for (LongWait until = wait(); !backend->reached(end).value();) {
      const Status going_on = until.go_on();
      ASSERT_TRUE(going_on.ok()) << going_on.message();
    }
    EXPECT_TRUE((*made)->status().ok()) << (*made)->status().message();
  }
  EXPECT_EQ(std::memcmp(host.data(), host.data() + kBytes, kBytes), 0);
}

}  // namespace
}  // namespace penstock::engine
