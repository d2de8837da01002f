// What every IoEngine must do. An implementation instantiates the suite with a way to make one and files for it.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "aio/queued_io_engine.h"
#include "tests/aio/test_files.h"

namespace penstock::aio {

struct EngineUnderTest {
  std::string name;
  std::function<Result<std::unique_ptr<IoEngine>>(IoEngineOptions options)> make;
  std::function<Result<std::unique_ptr<File>>(const std::string& path, uint64_t size_bytes)> make_file;
  bool is_faulty = false;  // pieces may come in several, so that only the result tells, not the order
};

class IoEngineContract : public ::testing::TestWithParam<EngineUnderTest> {
 protected:
  // Small pieces and a shallow queue, so that small transfers are cut and have to wait.
  void SetUp() override { make({.drive = {.block_bytes = 64 * 1024, .depth = 4}, .drives = {}, .on_stuck = {}}); }

  void make(IoEngineOptions options) {
    engine_.reset();
    auto made = GetParam().make(options);
    if (!made.ok()) GTEST_SKIP() << made.status().message();
    engine_ = std::move(made).value();
  }

  const File& file(const std::string& name, uint64_t size_bytes) {
    auto made = GetParam().make_file(folder_ / name, size_bytes);
    CHECK(made.ok(), made.status().message());
    files_.push_back(std::move(made).value());
    return *files_.back();
  }

  void write(const File& to, uint64_t seed, uint64_t offset_bytes, uint64_t bytes) {
    OwnMemory memory(bytes);
    fill_telling(memory.bytes(), seed, offset_bytes);
    auto end = engine_->write(to, offset_bytes, memory.lease()).wait();
    ASSERT_TRUE(end.ok()) << end.status().message();
  }

  void expect(const File& from, uint64_t seed, uint64_t offset_bytes, uint64_t bytes) {
    OwnMemory memory(bytes);
    auto end = engine_->read(from, offset_bytes, memory.lease()).wait();
    ASSERT_TRUE(end.ok()) << end.status().message();
    EXPECT_EQ(end->size_bytes(), bytes);
    EXPECT_EQ(first_wrong(memory.bytes(), seed, offset_bytes), -1);
  }

  ScratchFolder folder_;
  std::vector<std::unique_ptr<File>> files_;
  std::unique_ptr<IoEngine> engine_;
};

TEST_P(IoEngineContract, ReadsWhatItWrote) {
  const File& f = file("a", 8 * kMiB);
  for (uint64_t bytes : {4096ul, 8192ul, 61440ul, 65536ul, 69632ul, 1048576ul, 3149824ul}) {
    write(f, bytes, 4096, bytes);
    expect(f, bytes, 4096, bytes);
  }
}

TEST_P(IoEngineContract, GathersExtentsOfSeveralFiles) {
  const File& a = file("a", kMiB);
  const File& b = file("b", kMiB);
  OwnMemory memory(512 * kKiB);
  fill_telling(memory.bytes(), 5, 0);
  const std::vector<Extent> extents = {{&b, 256 * kKiB, 0, 128 * kKiB},
                                       {&a, 0, 384 * kKiB, 128 * kKiB},
                                       {&b, 0, 128 * kKiB, 4096},
                                       {&a, 512 * kKiB, 132 * kKiB, 252 * kKiB}};
  ASSERT_TRUE(engine_->write(extents, memory.lease(), 0).wait().ok());
  OwnMemory back(512 * kKiB);
  ASSERT_TRUE(engine_->read(extents, back.lease(), 0).wait().ok());
  EXPECT_EQ(first_wrong(back.bytes(), 5, 0), -1);
  // Each piece of the lease lies where its extent says.
  OwnMemory one(4096);
  ASSERT_TRUE(engine_->read(b, 0, one.lease()).wait().ok());
  EXPECT_EQ(first_wrong(one.bytes(), 5, 128 * kKiB), -1);
}

TEST_P(IoEngineContract, EndsEachOfManyExactlyOnceWithTheRightBytes) {
  constexpr uint64_t kSeed = 11, kBlock = 96 * kKiB, kBlocks = 64;
  const File& f = file("a", kBlock * kBlocks);
  OwnMemory memory(kBlock * 24);
  BufferPool leases(Tier::host, memory.bytes(), kBlock);
  std::mt19937_64 random(kSeed);
  std::vector<uint64_t> version(kBlocks, 0);
  std::set<uint64_t> busy;
  size_t asked = 0, ended = 0;
  for (int round = 0; round < 1500; ++round) {
    const uint64_t block = random() % kBlocks;
    auto lease = leases.try_lease();
    if (!lease || busy.contains(block)) {
      engine_->wait(std::chrono::milliseconds(100));
      continue;
    }
    busy.insert(block);
    ++asked;
    const IoEngine::Deadline deadline = random() % 8;
    if (random() % 2 == 0) {
      fill_telling(lease->bytes(), ++version[block], block * kBlock);
      engine_->write(f, block * kBlock, *std::move(lease), deadline).then([&, block](Result<Lease> end) {
        EXPECT_TRUE(end.ok());
        busy.erase(block);
        ++ended;
      });
    } else {
      engine_->read(f, block * kBlock, *std::move(lease), deadline).then([&, block](Result<Lease> end) {
        ASSERT_TRUE(end.ok());
        if (version[block] > 0) {
          EXPECT_EQ(first_wrong(end->bytes(), version[block], block * kBlock), -1) << "seed 11";
        }
        busy.erase(block);
        ++ended;
      });
    }
  }
  while (ended < asked) ASSERT_GT(engine_->wait(std::chrono::seconds(20)), 0u);
  EXPECT_EQ(leases.pieces_free(), leases.pieces());
}

TEST_P(IoEngineContract, IssuesTheEarliestDeadlineFirst) {
  make({.drive = {.block_bytes = 64 * 1024, .depth = 1}, .drives = {}, .on_stuck = {}});
  const File& f = file("a", kMiB);
  OwnMemory memory(kMiB);
  std::vector<int> order;
  // The first goes at once; the others have to wait for it.
  const IoEngine::Deadline deadlines[] = {9, 5, 7, 1, 5, 3};
  for (int i = 0; i < 6; ++i) {
    engine_->read(f, 0, memory.lease(static_cast<uint64_t>(i) * 64 * kKiB, 64 * kKiB), deadlines[i])
        .then([&order, i](Result<Lease> end) {
          ASSERT_TRUE(end.ok());
          order.push_back(i);
        });
  }
  while (order.size() < 6) engine_->wait(std::chrono::seconds(1));
  EXPECT_EQ(order, (std::vector<int>{0, 3, 5, 1, 4, 2}));
}

TEST_P(IoEngineContract, AlternatesReadsAndWrites) {
  if (GetParam().is_faulty) GTEST_SKIP() << "a piece that is continued counts as another one";
  make({.drive = {.block_bytes = 64 * 1024, .depth = 1}, .drives = {}, .on_stuck = {}});
  const File& f = file("a", kMiB);
  OwnMemory memory(kMiB);
  std::string order;
  auto note = [&order](char letter) { return [&order, letter](Result<Lease>) { order += letter; }; };
  auto piece = [&](uint64_t i) { return memory.lease(i * 64 * kKiB, 64 * kKiB); };
  for (uint64_t i = 0; i < 4; ++i) engine_->read(f, 0, piece(i), 1).then(note('r'));
  for (uint64_t i = 4; i < 8; ++i) engine_->write(f, 64 * kKiB, piece(i), 2).then(note('w'));
  while (order.size() < 8) engine_->wait(std::chrono::seconds(1));
  EXPECT_EQ(order, "rwrwrwrw");
}

TEST_P(IoEngineContract, AFunctionGivenToThenMayAskForMore) {
  const File& f = file("a", kMiB);
  write(f, 1, 0, kMiB);
  OwnMemory memory(64 * kKiB);
  int left = 16;
  std::function<void(Result<Lease>)> next = [&](Result<Lease> end) {
    ASSERT_TRUE(end.ok());
    if (--left > 0) engine_->read(f, 0, std::move(end).value()).then(next);
  };
  engine_->read(f, 0, memory.lease()).then(next);
  while (left > 0) ASSERT_GT(engine_->wait(std::chrono::seconds(20)), 0u);
  // And may wait for it on the spot.
  OwnMemory other(64 * kKiB);
  bool done = false;
  engine_->read(f, 0, memory.lease()).then([&](Result<Lease>) {
    EXPECT_TRUE(engine_->read(f, 64 * kKiB, other.lease()).wait().ok());
    done = true;
  });
  while (!done) ASSERT_GT(engine_->wait(std::chrono::seconds(20)), 0u);
  EXPECT_EQ(first_wrong(other.bytes(), 1, 64 * kKiB), -1);
}

TEST_P(IoEngineContract, ADroppedTransferGoesOnAndItsLeaseReturns) {
  const File& f = file("a", kMiB);
  OwnMemory memory(kMiB);
  BufferPool pool(Tier::host, memory.bytes(), kMiB);
  {
    auto lease = pool.try_lease();
    fill_telling(lease->bytes(), 3, 0);
    Transfer dropped = engine_->write(f, 0, *std::move(lease));
  }
  while (pool.pieces_free() == 0) ASSERT_GT(engine_->wait(std::chrono::seconds(20)), 0u);
  expect(f, 3, 0, kMiB);
}

TEST_P(IoEngineContract, WaitingEndsWhenNothingIsLeftAndAtTheTimeout) {
  EXPECT_EQ(engine_->poll(), 0u);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(engine_->wait(std::chrono::hours(1)), 0u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST_P(IoEngineContract, WaitsUntilAConditionHoldsOrNothingIsLeft) {
  const File& f = file("a", 4 * kMiB);
  OwnMemory memory(64 * kKiB);
  fill_telling(memory.bytes(), 7, 0);
  uint64_t ended = 0;
  std::function<void(Lease)> write_next = [&](Lease lease) {
    engine_->write(f, ended * 64 * kKiB, std::move(lease)).then([&](Result<Lease> end) {
      ASSERT_TRUE(end.ok());
      if (++ended < 40) write_next(std::move(*end));
    });
  };
  write_next(memory.lease());
  engine_->wait_until([&] { return ended >= 20; });
  EXPECT_EQ(ended, 20u);
  engine_->wait_until([] { return false; });
  EXPECT_EQ(ended, 40u);
  for (uint64_t i = 0; i < 40; ++i) {
    OwnMemory back(64 * kKiB);
    ASSERT_TRUE(engine_->read(f, i * 64 * kKiB, back.lease()).wait().ok());
    EXPECT_EQ(first_wrong(back.bytes(), 7, 0), -1) << i;
  }
}

TEST_P(IoEngineContract, WhatWasAskedForInsideIsWithTheDrivesWhenTheWaitIsOver) {
  if (GetParam().is_faulty) GTEST_SKIP() << "what is tried again needs the engine";
  if (GetParam().name == "threads") GTEST_SKIP() << "looking at memory that another thread writes is a race";
  const File& f = file("a", kMiB);
  write(f, 9, 0, 128 * kKiB);
  OwnMemory first(64 * kKiB), second(64 * kKiB);
  bool asked = false;
  engine_->read(f, 0, first.lease()).then([&](Result<Lease>) {
    engine_->read(f, 64 * kKiB, second.lease());
    asked = true;
  });
  engine_->wait_until([&] { return asked; });
  // Nobody asks the engine any more.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (first_wrong(second.bytes(), 9, 64 * kKiB) != -1 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(first_wrong(second.bytes(), 9, 64 * kKiB), -1);
}

TEST_P(IoEngineContract, TheCompletionDescriptorWakesAWaiter) {
  const File& f = file("a", 4 * kMiB);
  const Result<int> fd = engine_->completion_fd();
  ASSERT_TRUE(fd.ok()) << fd.status().message();
  for (int round = 0; round < 20; ++round) {
    OwnMemory memory(kMiB);
    bool done = false;
    engine_->read(f, 0, memory.lease()).then([&](Result<Lease> end) {
      EXPECT_TRUE(end.ok());
      done = true;
    });
    while (!done) {
      pollfd wanted{*fd, POLLIN, 0};
      ASSERT_EQ(::poll(&wanted, 1, 20000), 1) << "nobody was woken in round " << round;
      engine_->poll();
    }
  }
}

TEST_P(IoEngineContract, TheCompletionDescriptorWakesForWhatIsRefusedAtOnce) {
  const File& f = file("a", kMiB);
  f.note_failed_flush();
  const Result<int> fd = engine_->completion_fd();
  ASSERT_TRUE(fd.ok()) << fd.status().message();
  OwnMemory memory(4096);
  for (int round = 0; round < 3; ++round) {
    engine_->wait(std::chrono::milliseconds(1));
    bool refused = false;
    engine_->write(f, 0, memory.lease()).then([&](Result<Lease> end) { refused = !end.ok(); });
    while (!refused) {
      pollfd wanted{*fd, POLLIN, 0};
      ASSERT_EQ(::poll(&wanted, 1, 20000), 1) << "nobody was woken in round " << round;
      engine_->poll();
    }
  }
}

// Else a thread that waits on several descriptors never sleeps.
TEST_P(IoEngineContract, TheCompletionDescriptorRestsWhenNothingIsUnderWay) {
  const File& f = file("a", 4 * kMiB);
  OwnMemory memory(kMiB);
  const Result<int> fd = engine_->completion_fd();
  ASSERT_TRUE(fd.ok()) << fd.status().message();
  auto rests = [&] {
    // What is readable now may be answered by poll(), but not for ever.
    pollfd wanted{*fd, POLLIN, 0};
    for (int round = 0; round < 3 && ::poll(&wanted, 1, 0) == 1; ++round) engine_->poll();
    return ::poll(&wanted, 1, 0) == 0;
  };
  EXPECT_TRUE(rests()) << "nothing was asked for yet";
  ASSERT_TRUE(engine_->read(f, 0, memory.lease()).wait().ok());
  EXPECT_TRUE(rests()) << "after a wait for one";
  bool done = false;
  engine_->write(f, 0, memory.lease()).then([&](Result<Lease>) { done = true; });
  engine_->wait_until([&] { return done; });
  EXPECT_TRUE(rests()) << "after a wait until";
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // longer than a ring's tick
  EXPECT_TRUE(rests()) << "some time later";
}

TEST_P(IoEngineContract, FlushEndsAndGivesBackAnEmptyLease) {
  const File& f = file("a", kMiB);
  write(f, 1, 0, kMiB);
  auto end = engine_->flush(f).wait();
  ASSERT_TRUE(end.ok()) << end.status().message();
  EXPECT_FALSE(static_cast<bool>(*end));
  EXPECT_FALSE(f.flush_failed());
}

TEST_P(IoEngineContract, CancelEndsEverythingAndLosesNoLease) {
  const File& f = file("a", 4 * kMiB);
  OwnMemory memory(4 * kMiB);
  BufferPool pool(Tier::host, memory.bytes(), 256 * kKiB);
  size_t ended = 0, canceled = 0;
  for (uint64_t i = 0; i < pool.pieces(); ++i) {
    engine_->write(f, i * 256 * kKiB, *pool.try_lease()).then([&](Result<Lease> end) {
      ++ended;
      if (end.ok()) return;
      ++canceled;
      EXPECT_NE(end.status().message().find("ECANCELED"), std::string::npos) << end.status().message();
      // What is asked for meanwhile is refused too, or this would never end.
      EXPECT_FALSE(engine_->flush(f).wait().ok());
    });
  }
  engine_->cancel_and_drain();
  EXPECT_EQ(ended, pool.pieces());
  EXPECT_GT(canceled, 0u);
  EXPECT_EQ(pool.pieces_free(), pool.pieces());
  write(f, 2, 0, kMiB);
  expect(f, 2, 0, kMiB);
}

TEST_P(IoEngineContract, ItsEndDrainsWhatIsUnderWay) {
  const File& f = file("a", 4 * kMiB);
  OwnMemory memory(4 * kMiB);
  BufferPool pool(Tier::host, memory.bytes(), kMiB);
  for (uint64_t i = 0; i < 4; ++i) Transfer dropped = engine_->write(f, i * kMiB, *pool.try_lease());
  engine_.reset();
  EXPECT_EQ(pool.pieces_free(), pool.pieces());
}

TEST_P(IoEngineContract, RegisteredMemoryAndFilesMoveTheSameBytes) {
  const File& f = file("a", 4 * kMiB);
  OwnMemory memory(4 * kMiB), other(kMiB);
  engine_->register_memory(other.bytes());                   // so that the one in use is not the only one
  engine_->register_memory(memory.bytes().first(2 * kMiB));  // half of it, so that one transfer has both
  engine_->register_file(f);
  engine_->register_file(f);
  fill_telling(memory.bytes(), 9, 0);
  ASSERT_TRUE(engine_->write(f, 0, memory.lease()).wait().ok());
  std::memset(memory.bytes().data(), 0, memory.bytes().size());
  ASSERT_TRUE(engine_->read(f, 0, memory.lease()).wait().ok());
  EXPECT_EQ(first_wrong(memory.bytes(), 9, 0), -1);
  EXPECT_TRUE(engine_->flush(f).wait().ok());
  engine_->unregister_file(f);
  engine_->unregister_file(f);
  expect(f, 9, 0, 4 * kMiB);
  EXPECT_FALSE(engine_->description().empty());
}

TEST_P(IoEngineContract, CountsWhatMoved) {
  const File& f = file("a", kMiB);
  write(f, 1, 0, kMiB);
  expect(f, 1, 0, 512 * kKiB);
  ASSERT_TRUE(engine_->flush(f).wait().ok());
  const DriveCounters counters = engine_->counters(f.drive());
  EXPECT_EQ(counters.written_bytes, kMiB);
  EXPECT_EQ(counters.read_bytes, 512 * kKiB);
  EXPECT_GE(counters.writes, 16u);
  EXPECT_EQ(counters.flushes, 1u);
  EXPECT_EQ(counters.bytes_in_flight + counters.bytes_queued, 0u);
}

TEST_P(IoEngineContract, AnEmptyRequestEndsWell) {
  OwnMemory memory(4096);
  auto end = engine_->read({}, memory.lease(), 0).wait();
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->data(), memory.bytes().data());
}

TEST_P(IoEngineContract, RefusesWritesAfterAFailedFlush) {
  const File& f = file("a", kMiB);
  write(f, 1, 0, kMiB);
  f.note_failed_flush();
  OwnMemory memory(4096);
  EXPECT_FALSE(engine_->write(f, 0, memory.lease()).wait().ok());
  EXPECT_FALSE(engine_->flush(f).wait().ok());
  expect(f, 1, 0, kMiB);
}

}  // namespace penstock::aio
