// What StreamedDevice does when its backend refuses: the host's backend, with refusals laid over it, stands in for a
// CUDA runtime that fails. All of this code runs above CUDA too.
#include "gpu/streamed_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/gpu/refusing_backend.h"

namespace penstock::gpu {
namespace {

using Refusals = RefusingBackend::Refusals;

std::shared_ptr<Refusals> refusing(Refusals refusals) { return std::make_shared<Refusals>(refusals); }

Result<std::unique_ptr<Device>> open(const std::shared_ptr<Refusals>& refusals, uint64_t arena_bytes) {
  return StreamedDevice::open(std::make_unique<RefusingBackend>(refusals), arena_bytes);
}

Lease host(std::span<std::byte> bytes) { return Lease::over(Tier::host, bytes); }
Lease all_of(Device& device) { return Lease::over(Tier::device, device.memory()); }

TEST(StreamedDevice, RegistersAllThenWindowsThenNothingAndSaysSo) {
  Buffer arena = Buffer::on_heap(4 * kMiB);
  std::span<std::byte> windows[] = {arena.bytes().subspan(0, kMiB), arena.bytes().subspan(kMiB, 2 * kMiB),
                                    arena.bytes().subspan(3 * kMiB, 512 * kKiB)};
  {
    auto refusals = refusing({});
    std::unique_ptr<Device> device = open(refusals, 4096).value();
    HostRegistration done = device->register_host_memory(arena.bytes(), windows);
    EXPECT_EQ(done.extent, HostRegistration::Extent::all);
    EXPECT_EQ(done.registered_bytes, 4 * kMiB);
    EXPECT_EQ(done.explanation, "");
    EXPECT_NE(device->description().find("host memory registered"), std::string::npos) << device->description();
  }
  {
    auto refusals = refusing({.register_at_most_bytes = kMiB});
    std::unique_ptr<Device> device = open(refusals, 4096).value();
    HostRegistration done = device->register_host_memory(arena.bytes(), windows);
    EXPECT_EQ(done.extent, HostRegistration::Extent::windows);
    EXPECT_EQ(done.registered_bytes, kMiB + 512 * kKiB);
    EXPECT_EQ(done.explanation,
              "host memory of 4.00 MiB is not registered: cudaErrorMemoryAllocation; its windows of 1.50 MiB are; "
              "copies elsewhere go through a pinned buffer of 4.00 MiB");
  }
  {
    auto refusals = refusing({.register_at_most_bytes = 4096});
    std::unique_ptr<Device> device = open(refusals, 4096).value();
    HostRegistration done = device->register_host_memory(arena.bytes(), windows);
    EXPECT_EQ(done.extent, HostRegistration::Extent::nothing);
    EXPECT_EQ(done.registered_bytes, 0u);
    EXPECT_NE(device->description().find("no host memory registered"), std::string::npos) << device->description();
  }
}

TEST(StreamedDevice, SaysWhichPartOfOpeningWasRefused) {
  for (int streams = 0; streams < 5; ++streams) {
    auto refusals = refusing({.streams = streams});
    Result<std::unique_ptr<Device>> device = open(refusals, 4096);
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.status().message(), "open host memory: cudaStreamCreate");
  }
}

TEST(StreamedDevice, EndsACopyThatWasRefusedAndGivesItsLeasesBack) {
  Buffer memory = Buffer::on_heap(kMiB);
  for (int copies : {0, 1}) {
    auto refusals = refusing({.copies = copies});
    std::unique_ptr<Device> device = open(refusals, kMiB).value();
    device->register_host_memory(memory.bytes(), {});
    BufferPool sources(Tier::host, memory.bytes(), kMiB), targets(Tier::device, device->memory(), kMiB);
    CopyRun runs[] = {{0, 0, 4096}, {8192, 8192, 4096}};
    Copy copy = device->copy(runs, *sources.try_lease(), *targets.try_lease(), {});
    Result<Lease> ended = std::move(copy.transfer).wait();
    ASSERT_FALSE(ended.ok());
    EXPECT_EQ(ended.status().message(), "cudaMemcpyAsync");
    EXPECT_EQ(sources.pieces_free(), 1u);
    EXPECT_EQ(targets.pieces_free(), 1u);
  }
}

TEST(StreamedDevice, EndsEveryCopyWhenTheDeviceIsLost) {
  Buffer memory = Buffer::on_heap(4 * 64 * kKiB);
  auto refusals = refusing({});
  std::unique_ptr<Device> device = open(refusals, 64 * kKiB).value();
  device->register_host_memory(memory.bytes(), {});
  BufferPool sources(Tier::host, memory.bytes(), 64 * kKiB);
  std::vector<Transfer> transfers;
  refusals->lost = true;
  for (int i = 0; i < 4; ++i) transfers.push_back(device->copy(*sources.try_lease(), all_of(*device)).transfer);
  for (Transfer& transfer : transfers) {
    Result<Lease> ended = std::move(transfer).wait();
    ASSERT_FALSE(ended.ok());
    EXPECT_EQ(ended.status().message(), "copy on host memory: cudaErrorIllegalAddress");
  }
  EXPECT_EQ(sources.pieces_free(), 4u);
}

TEST(StreamedDevice, DrainsACopyWhoseEndCannotBeRecorded) {
  Buffer memory = Buffer::on_heap(8 * kMiB);
  auto refusals = refusing({.records = 0});
  std::unique_ptr<Device> device = open(refusals, 8 * kMiB).value();
  device->register_host_memory(memory.bytes(), {});
  std::memset(memory.data(), 0x33, memory.size_bytes());
  Copy copy = device->copy(host(memory.bytes()), all_of(*device));
  ASSERT_TRUE(copy.transfer.ended());
  Result<Lease> ended = std::move(copy.transfer).wait();
  ASSERT_FALSE(ended.ok());
  EXPECT_NE(ended.status().message().find("cudaEventRecord"), std::string::npos);
  // Nothing writes to the target any more, so it may be leased again at once.
  EXPECT_EQ(device->memory()[8 * kMiB - 1], std::byte{0x33});
}

TEST(StreamedDevice, FindsTheEndOfACopyThatCouldNotSignal) {
  Buffer memory = Buffer::on_heap(kMiB);
  auto refusals = refusing({.calls = 0});
  std::unique_ptr<Device> device = open(refusals, kMiB).value();
  device->register_host_memory(memory.bytes(), {});
  Result<Lease> ended = std::move(device->copy(host(memory.bytes()), all_of(*device)).transfer).wait();
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.status().message(), "cudaLaunchHostFunc");
}

TEST(StreamedDevice, RefusesAStagedCopyWhereNothingCanBePinned) {
  std::vector<std::byte> bytes(kMiB);
  auto refusals = refusing({.nothing_pinned = true});
  std::unique_ptr<Device> device = open(refusals, kMiB).value();
  Result<Lease> ended = std::move(device->copy(host(bytes), all_of(*device)).transfer).wait();
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.status().message(), "cudaHostAlloc");
}

TEST(StreamedDevice, StagesCopiesLargerThanItsPinnedBuffer) {
  auto refusals = refusing({.register_at_most_bytes = 0});
  std::unique_ptr<Device> device = open(refusals, 19 * kMiB + 12345).value();
  std::vector<std::byte> in(device->memory().size()), out(device->memory().size());
  std::mt19937_64 random(11);
  for (std::byte& byte : in) byte = static_cast<std::byte>(random());
  Copy first = device->copy(host(in), all_of(*device));
  Copy second = device->copy(all_of(*device), host(out), {&first.done, 1});
  EXPECT_TRUE(std::move(second.transfer).wait().ok());
  EXPECT_TRUE(std::move(first.transfer).wait().ok());
  EXPECT_EQ(in, out);
}

// RefusingBackend fails the test when a copy engine reads beyond what is registered.
TEST(StreamedDevice, StagesACopyThatStraddlesTheEndOfARegisteredWindow) {
  Buffer memory = Buffer::on_heap(4 * kMiB);
  std::mt19937_64 random(12);
  for (std::byte& byte : memory.bytes()) byte = static_cast<std::byte>(random());
  const std::span<std::byte> window = memory.bytes().subspan(kMiB, kMiB);
  auto refusals = refusing({.register_at_most_bytes = kMiB});
  std::unique_ptr<Device> device = open(refusals, kMiB).value();
  ASSERT_EQ(device->register_host_memory(memory.bytes(), {&window, 1}).extent, HostRegistration::Extent::windows);
  for (uint64_t begin : {2 * kMiB - 4096, 2 * kMiB - 1, kMiB - 4096, kMiB - 8191}) {
    const std::span<std::byte> straddling = memory.bytes().subspan(begin, 8192);
    const std::span<std::byte> target = device->memory().first(8192);
    Copy copy = device->copy(host(straddling), Lease::over(Tier::device, target));
    EXPECT_TRUE(std::move(copy.transfer).wait().ok());
    EXPECT_TRUE(std::ranges::equal(straddling, target)) << "from " << begin;
  }
}

}  // namespace
}  // namespace penstock::gpu
