#include "tests/support/faulty_backend.h"

#include <gtest/gtest.h>

#include "aio/queued_io_engine.h"
#include "aio/uring_backend.h"
#include "tests/aio/test_files.h"
#include "tests/support/instrumented.h"
#include "tests/support/memory_backend.h"

namespace penstock::aio {
namespace {

// Reads and writes blocks at random until so many faults have struck. Every read that ended well must bring what the
// last write that ended well left there, unless a failed write came after it: then each aligned part may be old or new.
class FaultStorm {
 public:
  FaultStorm(const File& file, std::unique_ptr<IoBackend> inner, FaultOptions options)
      : file_(file), memory_(kBlockBytes * 16), pool_(Tier::host, memory_.bytes(), kBlockBytes), random_(options.seed) {
    auto faulty = std::make_unique<FaultyBackend>(std::move(inner), options);
    faults_ = faulty.get();
    engine_ = std::make_unique<QueuedIoEngine>(
        std::move(faulty),
        IoEngineOptions{.drive = {.block_bytes = 16 * 1024, .depth = 8}, .drives = {}, .on_stuck = {}});
    blocks_.resize(file.size_bytes() / kBlockBytes);
    for (uint64_t b = 0; b < blocks_.size(); ++b) write(b);
    drain();
  }

  void run_until(uint64_t faults) {
    while (faults_->count_all() < faults) {
      const uint64_t block = random_() % blocks_.size();
      if (pool_.pieces_free() == 0 || blocks_[block].busy) {
        ASSERT_GT(engine_->wait(std::chrono::seconds(20)), 0u) << "hangs";
      } else if (random_() % 2 == 0) {
        write(block);
      } else {
        read(block);
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
    drain();
    EXPECT_EQ(pool_.pieces_free(), pool_.pieces()) << "a lease has leaked";
    EXPECT_EQ(asked_, ended_);
  }

  const FaultyBackend& faults() const { return *faults_; }
  uint64_t refused() const { return refused_; }
  uint64_t read_well() const { return read_well_; }

 private:
  static constexpr uint64_t kBlockBytes = 64 * 1024;
  struct Block {
    bool busy = false;
    bool untouched = true;         // no write has ended well yet, so zeros may be left
    std::vector<uint64_t> may_be;  // the versions that an aligned part of it may have
  };

  void write(uint64_t block) {
    auto lease = pool_.try_lease();
    while (!lease) {
      engine_->wait(std::chrono::seconds(20));
      lease = pool_.try_lease();
    }
    const uint64_t version = ++versions_;
    fill_telling(lease->bytes(), version, block * kBlockBytes);
    blocks_[block].busy = true;
    ++asked_;
    engine_->write(file_, block * kBlockBytes, *std::move(lease), random_() % 4).then([=, this](Result<Lease> end) {
      Block& b = blocks_[block];
      b.busy = false;
      ++ended_;
      count_refusal(end);
      if (end.ok()) {
        b.may_be.clear();
        b.untouched = false;
      }
      b.may_be.push_back(version);
    });
  }

  void read(uint64_t block) {
    blocks_[block].busy = true;
    ++asked_;
    engine_->read(file_, block * kBlockBytes, *pool_.try_lease(), random_() % 4).then([=, this](Result<Lease> end) {
      Block& b = blocks_[block];
      b.busy = false;
      ++ended_;
      count_refusal(end);
      if (!end.ok() || b.untouched) return;
      ++read_well_;
      for (uint64_t at = 0; at < kBlockBytes; at += file_.alignment_bytes()) {
        const auto part = end->bytes().subspan(at, file_.alignment_bytes());
        bool known = false;
        for (uint64_t version : b.may_be) known = known || first_wrong(part, version, block * kBlockBytes + at) == -1;
        EXPECT_TRUE(known) << "wrong bytes at " << block * kBlockBytes + at;
      }
    });
  }

  void count_refusal(const Result<Lease>& end) {
    if (end.ok()) return;
    ++refused_;
    // Nothing here injects it: an unaligned piece of ours would.
    EXPECT_EQ(end.status().message().find("EINVAL"), std::string::npos) << end.status().message();
  }

  void drain() {
    while (ended_ < asked_) ASSERT_GT(engine_->wait(std::chrono::seconds(20)), 0u) << "hangs";
  }

  const File& file_;
  OwnMemory memory_;
  BufferPool pool_;
  std::mt19937_64 random_;
  FaultyBackend* faults_ = nullptr;
  std::unique_ptr<QueuedIoEngine> engine_;
  std::vector<Block> blocks_;
  uint64_t versions_ = 0, asked_ = 0, ended_ = 0, refused_ = 0, read_well_ = 0;
};

FaultOptions every_fault(uint64_t seed) {
  FaultOptions options{.seed = seed, .chance = {}, .delay_chance = 0.3};
  options.with(Fault::short_move, 0.05).with(Fault::eintr, 0.02).with(Fault::eio, 0.005).with(Fault::enospc, 0.005);
  return options.with(Fault::torn_write, 0.005);
}

TEST(FaultyBackend, AHundredThousandFaultsLeaveNoWrongByteNoHangAndNoLeak) {
  constexpr uint64_t kSeeds = test::fewer(20), kFaultsEach = 5000;
  uint64_t read_well = 0, refused = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(text("seed ", seed));
    MemoryFile file("memory", 4 * kMiB);
    FaultStorm storm(file, std::make_unique<MemoryBackend>(), every_fault(seed));
    storm.run_until(kFaultsEach);
    if (HasFailure()) return;
    for (Fault fault : {Fault::short_move, Fault::eintr, Fault::eio, Fault::enospc, Fault::torn_write}) {
      EXPECT_GT(storm.faults().count(fault), 0u);
    }
    read_well += storm.read_well();
    refused += storm.refused();
  }
  EXPECT_GT(read_well, kSeeds * kFaultsEach);
  EXPECT_GT(refused, kSeeds * kFaultsEach / 100);
}

TEST(FaultyBackend, ARealRingBringsTheRightBytesThroughFaults) {
  auto ring = make_uring_backend();
  if (!ring.ok()) GTEST_SKIP() << ring.status().message();
  ScratchFolder folder;
  auto file = DirectFile::create(folder / "a", 4 * kMiB, Existing::refuse, {.in_memory = InMemory::allow});
  ASSERT_TRUE(file.ok()) << file.status().message();
  FaultStorm storm(**file, std::move(ring).value(), every_fault(1));
  storm.run_until(5000);
  EXPECT_GT(storm.read_well(), 1000u);
}

// These wait in real time before they try again, so there are fewer of them.
TEST(FaultyBackend, PassingRefusalsAreTriedAgain) {
  MemoryFile file("memory", kMiB);
  FaultOptions options{.seed = 3, .chance = {}};
  options.with(Fault::eagain, 0.05).with(Fault::enomem, 0.05);
  FaultStorm storm(file, std::make_unique<MemoryBackend>(), options);
  storm.run_until(300);
  EXPECT_EQ(storm.refused(), 0u);
}

struct OneFault {
  explicit OneFault(Fault fault) : file("rank0.seg", kMiB), memory(64 * kKiB) {
    FaultOptions options;
    options.with(fault, 1);
    engine =
        std::make_unique<QueuedIoEngine>(std::make_unique<FaultyBackend>(std::make_unique<MemoryBackend>(), options));
  }
  MemoryFile file;
  OwnMemory memory;
  std::unique_ptr<QueuedIoEngine> engine;
};

TEST(FaultyBackend, ARefusalNamesFileOffsetLengthAndErrno) {
  OneFault one(Fault::eio);
  auto end = one.engine->read(one.file, 8192, one.memory.lease()).wait();
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.status().message(), "read 65536 B at 8192 of rank0.seg: EIO (Input/output error)");
  EXPECT_EQ(end.status().code(), Code::kEnvironment);
  EXPECT_NE(end.status().remedy().find("`penstock checkpoint scrub` lists"), std::string::npos)
      << end.status().remedy();
}

TEST(FaultyBackend, AFullDriveDoesNotFit) {
  OneFault one(Fault::enospc);
  auto end = one.engine->write(one.file, 0, one.memory.lease()).wait();
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.status().code(), Code::kDoesNotFit);
}

TEST(FaultyBackend, WhatNeverStopsFailingIsRefusedInTheEnd) {
  for (Fault fault : {Fault::eagain, Fault::eintr}) {
    OneFault one(fault);
    auto end = one.engine->write(one.file, 0, one.memory.lease()).wait();
    ASSERT_FALSE(end.ok());
    EXPECT_NE(end.status().message().find(fault == Fault::eagain ? "EAGAIN" : "EINTR"), std::string::npos);
  }
}

TEST(FaultyBackend, AFailedFlushIsFinal) {
  OneFault one(Fault::failed_flush);
  EXPECT_TRUE(one.engine->write(one.file, 0, one.memory.lease()).wait().ok());
  EXPECT_FALSE(one.engine->flush(one.file).wait().ok());
  EXPECT_TRUE(one.file.flush_failed());
  // Even an engine that works refuses it now.
  QueuedIoEngine sound(std::make_unique<MemoryBackend>());
  EXPECT_FALSE(sound.write(one.file, 0, one.memory.lease()).wait().ok());
  EXPECT_FALSE(sound.flush(one.file).wait().ok());
  EXPECT_TRUE(sound.read(one.file, 0, one.memory.lease()).wait().ok());
}

TEST(FaultyBackend, ALostWriteIsReportedAsWritten) {
  OneFault one(Fault::lost_write);
  fill_telling(one.memory.bytes(), 1, 0);
  EXPECT_TRUE(one.engine->write(one.file, 0, one.memory.lease()).wait().ok());
  EXPECT_EQ(one.file.bytes()[0], std::byte{0});
}

}  // namespace
}  // namespace penstock::aio
