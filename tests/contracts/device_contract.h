// What every Device must do. An implementation is tested by
//   INSTANTIATE_TEST_SUITE_P(Mine, DeviceContract, testing::Values(DeviceCase{"plain", open_mine}), device_case_name);
// The suite looks into device memory only by copying it out, as a GPU's must be.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/contracts/device_case.h"

namespace penstock {

class DeviceContract : public testing::TestWithParam<DeviceCase> {
 protected:
  static constexpr uint64_t kPiece = 64 * kKiB;

  void SetUp() override {
    if (std::string absent = GetParam().absent(); !absent.empty()) GTEST_SKIP() << absent;
  }

  std::unique_ptr<Device> open(uint64_t arena_bytes) {
    Result<std::unique_ptr<Device>> device = GetParam().open(arena_bytes);
    CHECK(device.ok(), device.status().message());
    return std::move(device).value();
  }

  static std::vector<std::byte> random_bytes(uint64_t size, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }

  static Lease host(std::vector<std::byte>& bytes) { return Lease::over(Tier::host, bytes); }
  static Lease part(Device& device, uint64_t offset, uint64_t length) {
    return Lease::over(Tier::device, device.memory().subspan(offset, length));
  }
  static void expect_ok(Transfer transfer) {
    Result<Lease> ended = std::move(transfer).wait();
    EXPECT_TRUE(ended.ok()) << ended.status().message();
  }
  static std::vector<std::byte> contents(Device& device, uint64_t offset, uint64_t length, Event after = {}) {
    std::vector<std::byte> bytes(length);
    expect_ok(device.copy(part(device, offset, length), host(bytes), {&after, 1}).transfer);
    return bytes;
  }
};

TEST_P(DeviceContract, ReservesExactlyItsBudget) {
  for (uint64_t bytes : {uint64_t{4096}, uint64_t{3 * 4096 + 512}, 5 * kMiB + 1}) {
    std::unique_ptr<Device> device = open(bytes);
    EXPECT_EQ(device->memory().size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(device->memory().data()) % kAlignmentBytes, 0u);
  }
}

TEST_P(DeviceContract, RefusesABudgetBeyondItsMemoryAndSaysBoth) {
  uint64_t memory_bytes = open(4096)->facts().memory_bytes;
  ASSERT_GT(memory_bytes, 0u);
  Result<std::unique_ptr<Device>> refused = GetParam().open(4 * memory_bytes);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kDoesNotFit);
  EXPECT_NE(refused.status().message().find(std::to_string(4 * memory_bytes)), std::string::npos)
      << refused.status().message();
  EXPECT_NE(refused.status().message().find(std::to_string(memory_bytes)), std::string::npos);
}

TEST_P(DeviceContract, BringsBackTheBytesThatWereCopiedIn) {
  std::unique_ptr<Device> device = open(4 * kMiB);
  for (uint64_t length : {uint64_t{1}, uint64_t{7}, uint64_t{4096}, 1 * kMiB + 3, 4 * kMiB}) {
    std::vector<std::byte> in = random_bytes(length, length), out(length);
    uint64_t offset = 4 * kMiB - length;
    expect_ok(device->copy(host(in), part(*device, offset, length)).transfer);
    expect_ok(device->copy(part(*device, offset, length), host(out)).transfer);
    EXPECT_EQ(in, out) << length << " B";
  }
}

TEST_P(DeviceContract, CopiesWithinTheDevice) {
  std::unique_ptr<Device> device = open(2 * kMiB);
  std::vector<std::byte> in = random_bytes(kMiB, 1);
  Copy first = device->copy(host(in), part(*device, 0, kMiB));
  Copy second = device->copy(part(*device, 0, kMiB), part(*device, kMiB, kMiB), {&first.done, 1});
  EXPECT_EQ(contents(*device, kMiB, kMiB, second.done), in);
}

TEST_P(DeviceContract, PutsEachRunInItsPlaceAndTouchesNothingElse) {
  std::unique_ptr<Device> device = open(kPiece);
  std::vector<std::byte> before = random_bytes(kPiece, 1), in = random_bytes(kPiece, 2);
  expect_ok(device->copy(host(before), part(*device, 0, kPiece)).transfer);
  CopyRun runs[] = {{100, 4096, 50}, {0, 0, 1}, {5000, 60000, 5000}, {9, 9, 0}};
  expect_ok(device->copy(runs, host(in), part(*device, 0, kPiece), {}).transfer);
  std::vector<std::byte> expected = before;
  for (const CopyRun& run : runs) {
    std::memcpy(&expected[run.target_offset_bytes], &in[run.source_offset_bytes], run.length_bytes);
  }
  EXPECT_EQ(contents(*device, 0, kPiece), expected);
}

TEST_P(DeviceContract, HoldsBothLeasesUntilTheCopyEnds) {
  Buffer memory = Buffer::on_heap(2 * kPiece);
  std::unique_ptr<Device> device = open(2 * kPiece);
  BufferPool host_pool(Tier::host, memory.bytes(), kPiece);
  BufferPool device_pool(Tier::device, device->memory(), kPiece);
  Copy copy = device->copy(*host_pool.try_lease(), *device_pool.try_lease());
  EXPECT_EQ(host_pool.pieces_free(), 1u);
  EXPECT_EQ(device_pool.pieces_free(), 1u);
  while (!copy.transfer.ended()) device->wait(std::chrono::seconds(1));
  EXPECT_EQ(host_pool.pieces_free(), 2u);
  EXPECT_EQ(device_pool.pieces_free(), 1u);
  {
    Result<Lease> target = std::move(copy.transfer).wait();
    ASSERT_TRUE(target.ok());
    EXPECT_EQ(target->tier(), Tier::device);
  }
  EXPECT_EQ(device_pool.pieces_free(), 2u);
}

TEST_P(DeviceContract, GoesOnWithACopyWhoseTransferWasDropped) {
  std::unique_ptr<Device> device = open(kPiece);
  BufferPool pool(Tier::device, device->memory(), kPiece);
  std::vector<std::byte> in = random_bytes(kPiece, 3);
  Event done = device->copy(host(in), *pool.try_lease()).done;
  EXPECT_EQ(pool.pieces_free(), 0u);
  while (pool.pieces_free() == 0) device->wait(std::chrono::seconds(1));
  EXPECT_EQ(contents(*device, 0, kPiece, done), in);
}

TEST_P(DeviceContract, WaitsForItsCopiesWhenDestroyed) {
  Buffer memory = Buffer::on_heap(16 * kPiece);
  std::vector<std::byte> out(8 * kMiB);
  BufferPool pool(Tier::host, memory.bytes(), kPiece);
  int ended = 0;
  auto count = [&](Result<Lease> target) { ended += target.ok() ? 1 : 0; };
  {
    std::unique_ptr<Device> device = open(8 * kMiB + kPiece);
    ASSERT_TRUE(device->launch(kernel::Fill{device->memory().data(), 8 * kMiB, 0x5a}, device->kernel_stream()).ok());
    Result<Event> filled = device->record(device->kernel_stream());
    ASSERT_TRUE(filled.ok());
    device->copy(part(*device, 0, 8 * kMiB), host(out), {&*filled, 1}).transfer.then(count);
    for (int i = 0; i < 16; ++i) {
      device->copy(*pool.try_lease(), part(*device, 8 * kMiB, kPiece)).transfer.then(count);
    }
    EXPECT_EQ(pool.pieces_free(), 0u);
    *filled = Event();
  }
  EXPECT_EQ(ended, 17);
  EXPECT_EQ(pool.pieces_free(), 16u);
  EXPECT_EQ(std::count(out.begin(), out.end(), std::byte{0x5a}), static_cast<int64_t>(out.size()));
}

// The whole of an acquire and a release: copy in, compute, copy out, the next copy in, with no host in between.
TEST_P(DeviceContract, OrdersCopiesAndKernelsByEventsAlone) {
  std::unique_ptr<Device> device = open(kMiB);
  Stream stream = device->kernel_stream();
  constexpr uint64_t kCount = kMiB / sizeof(float);
  for (int round = 0; round < 20; ++round) {
    std::vector<float> in(kCount), out(kCount);
    for (uint64_t i = 0; i < kCount; ++i) in[i] = static_cast<float>(i % 1000) + static_cast<float>(round);
    auto bytes = [](std::vector<float>& values) {
      return Lease::over(Tier::host, std::as_writable_bytes(std::span(values)));
    };
    // A loop that waits nowhere: round's copy in must not overtake the copy out that still reads the place.
    std::vector<Transfer> transfers;
    Event free;
    for (int turn = 0; turn < 4; ++turn) {
      Copy in_copy = device->copy(bytes(in), part(*device, 0, kMiB), {&free, 1});
      ASSERT_TRUE(device->make_wait(stream, in_copy.done).ok());
      for (int doubling = 0; doubling <= turn; ++doubling) {
        ASSERT_TRUE(device->launch(kernel::Scale{device->memory().data(), Dtype::fp32, 2.0f, kCount}, stream).ok());
      }
      Result<Event> computed = device->record(stream);
      ASSERT_TRUE(computed.ok());
      Copy out_copy = device->copy(part(*device, 0, kMiB), bytes(out), {&*computed, 1});
      free = out_copy.done;
      transfers.push_back(std::move(in_copy.transfer));
      transfers.push_back(std::move(out_copy.transfer));
    }
    for (Transfer& transfer : transfers) expect_ok(std::move(transfer));
    for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], 16 * in[i]) << "round " << round << ", element " << i;
  }
}

// As a trainer on its own thread does it, on the stream that it computes on.
TEST_P(DeviceContract, OrdersItselfWithAnotherThreadsStream) {
  std::unique_ptr<Device> device = open(kMiB);
  Stream trainer{};
  for (int round = 0; round < 50; ++round) {
    std::vector<std::byte> in = random_bytes(kMiB, 100 + static_cast<uint64_t>(round)), out(kMiB);
    Copy acquired = device->copy(host(in), part(*device, 0, kMiB));
    Event released;
    std::thread([&] {
      ASSERT_TRUE(device->make_wait(trainer, acquired.done).ok());
      ASSERT_TRUE(device->launch(kernel::Fill{device->memory().data(), 4096, 0x11}, trainer).ok());
      Result<Event> event = device->record(trainer);
      ASSERT_TRUE(event.ok());
      released = *event;
    }).join();
    Copy back = device->copy(part(*device, 0, kMiB), host(out), {&released, 1});
    expect_ok(std::move(acquired.transfer));
    expect_ok(std::move(back.transfer));
    std::fill_n(in.begin(), 4096, std::byte{0x11});
    ASSERT_EQ(in, out) << "round " << round;
  }
}

TEST_P(DeviceContract, KnowsWhetherAnEventHasBeenReached) {
  std::unique_ptr<Device> device = open(kPiece);
  Result<bool> empty = device->reached(Event());
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(*empty);
  std::vector<std::byte> in = random_bytes(kPiece, 4);
  Copy copy = device->copy(host(in), part(*device, 0, kPiece));
  expect_ok(std::move(copy.transfer));
  Result<bool> after = device->reached(copy.done);
  ASSERT_TRUE(after.ok());
  EXPECT_TRUE(*after);
}

TEST_P(DeviceContract, WakesAThreadThatWaitsOnItsDescriptor) {
  std::unique_ptr<Device> device = open(8 * kMiB);
  std::vector<std::byte> in = random_bytes(8 * kMiB, 5);
  for (int round = 0; round < 20; ++round) {
    Copy copy = device->copy(host(in), part(*device, 0, 8 * kMiB));
    while (!copy.transfer.ended()) {
      pollfd readable{device->completion_fd(), POLLIN, 0};
      ASSERT_EQ(poll(&readable, 1, 10'000), 1) << "no wake-up in 10 s";
      device->poll();
    }
  }
  pollfd readable{device->completion_fd(), POLLIN, 0};
  while (poll(&readable, 1, 0) == 1) device->poll();
  EXPECT_EQ(device->poll(), 0u);
}

TEST_P(DeviceContract, WakesAThreadThatWaitsForAnEvent) {
  std::unique_ptr<Device> device = open(8 * kMiB);
  for (uint8_t round = 0; round < 20; ++round) {
    const Stream stream = device->kernel_stream();
    ASSERT_TRUE(device->launch(kernel::Fill{device->memory().data(), 8 * kMiB, round}, stream).ok());
    Event filled = device->record(stream).value();
    ASSERT_TRUE(device->wake_at(filled).ok());
    while (!device->reached(filled).value()) {
      pollfd readable{device->completion_fd(), POLLIN, 0};
      ASSERT_EQ(poll(&readable, 1, 10'000), 1) << "no wake-up in 10 s";
      device->poll();
    }
  }
}

TEST_P(DeviceContract, EndsEachCopyOnceAndLetsItsEndBeginAnother) {
  std::unique_ptr<Device> device = open(kPiece);
  std::vector<std::byte> in = random_bytes(kPiece, 6);
  int ends = 0;
  std::function<void(Result<Lease>)> again = [&](Result<Lease> target) {
    ASSERT_TRUE(target.ok()) << target.status().message();
    if (++ends == 100) return;
    device->copy(host(in), std::move(*target)).transfer.then(again);
  };
  device->copy(host(in), part(*device, 0, kPiece)).transfer.then(again);
  while (ends < 100) ASSERT_GT(device->wait(std::chrono::seconds(10)), 0u);
  EXPECT_EQ(device->wait(std::chrono::milliseconds(1)), 0u);
  EXPECT_EQ(ends, 100);
}

TEST_P(DeviceContract, CopiesFromRegisteredAndFromOtherMemoryAlike) {
  Buffer arena = Buffer::on_heap(4 * kMiB);
  std::unique_ptr<Device> device = open(2 * kMiB);
  std::span<std::byte> windows[] = {arena.bytes().subspan(0, kMiB), arena.bytes().subspan(2 * kMiB, kMiB)};
  HostRegistration registered = device->register_host_memory(arena.bytes(), windows);
  EXPECT_EQ(registered.explanation.empty(), registered.extent == HostRegistration::Extent::all);
  std::vector<std::byte> in = random_bytes(4 * kMiB, 7), elsewhere = random_bytes(kMiB, 8);
  std::memcpy(arena.data(), in.data(), in.size());
  for (uint64_t at = 0; at < 4 * kMiB; at += kMiB) {
    expect_ok(device->copy(Lease::over(Tier::host, arena.bytes().subspan(at, kMiB)), part(*device, 0, kMiB)).transfer);
    EXPECT_TRUE(std::ranges::equal(contents(*device, 0, kMiB), std::span(in).subspan(at, kMiB)));
  }
  expect_ok(device->copy(host(elsewhere), part(*device, kMiB, kMiB)).transfer);
  EXPECT_EQ(contents(*device, kMiB, kMiB), elsewhere);
}

// Pieces at random move to the device, between its places and back, with orders kept by events alone; a model in plain
// memory says what must come out.
TEST_P(DeviceContract, KeepsEveryByteThroughRandomTraffic) {
  for (uint64_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    constexpr uint64_t kPlaces = 8;
    std::mt19937_64 random(seed);
    std::unique_ptr<Device> device = open(kPlaces * kPiece);
    std::vector<std::vector<std::byte>> inputs, outputs, expected;
    std::vector<std::vector<std::byte>> model(kPlaces, std::vector<std::byte>(kPiece));
    std::vector<Event> last(kPlaces);
    inputs.reserve(400), outputs.reserve(400);
    for (Event& event : last) event = Event();
    for (uint64_t place = 0; place < kPlaces; ++place) {
      ASSERT_TRUE(device->launch(kernel::Fill{device->memory().data() + place * kPiece, kPiece, 0}, {}).ok());
    }
    Result<Event> zeroed = device->record({});
    ASSERT_TRUE(zeroed.ok());
    std::fill(last.begin(), last.end(), *zeroed);
    std::vector<Transfer> transfers;
    for (int move = 0; move < 400; ++move) {
      uint64_t a = random() % kPlaces, b = random() % kPlaces;
      Event after[] = {last[a], last[b]};
      uint64_t kind = random() % 3;
      if (kind == 0) {
        inputs.push_back(random_bytes(kPiece, random()));
        model[a] = inputs.back();
        Copy copy = device->copy(host(inputs.back()), part(*device, a * kPiece, kPiece), after);
        last[a] = copy.done;
        transfers.push_back(std::move(copy.transfer));
      } else if (kind == 1) {
        outputs.emplace_back(kPiece);
        expected.push_back(model[a]);
        Copy copy = device->copy(part(*device, a * kPiece, kPiece), host(outputs.back()), after);
        last[a] = copy.done;
        transfers.push_back(std::move(copy.transfer));
      } else if (a != b) {
        model[b] = model[a];
        Copy copy = device->copy(part(*device, a * kPiece, kPiece), part(*device, b * kPiece, kPiece), after);
        last[a] = last[b] = copy.done;
        transfers.push_back(std::move(copy.transfer));
      }
      if (random() % 8 == 0) device->poll();
    }
    for (Transfer& transfer : transfers) expect_ok(std::move(transfer));
    ASSERT_EQ(outputs, expected);
  }
}

TEST_P(DeviceContract, SaysWhatItIs) {
  std::unique_ptr<Device> device = open(4096);
  EXPECT_FALSE(device->facts().name.empty());
  EXPECT_GE(device->facts().copy_engines, 1u);
  EXPECT_NE(device->description().find(device->facts().name), std::string::npos);
}

}  // namespace penstock
