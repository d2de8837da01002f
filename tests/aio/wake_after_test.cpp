// That a wait sleeps until several pieces have ended, and never for longer than it may.
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "aio/libaio_backend.h"
#include "aio/queued_io_engine.h"
#include "aio/thread_backend.h"
#include "aio/uring_backend.h"
#include "tests/aio/test_files.h"
#include "tests/support/memory_backend.h"
#include "tests/support/wrapping_backend.h"

namespace penstock::aio {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr uint64_t kBlock = kMiB;

// Gives back one piece at a time, and writes down what it was told before.
class OneByOne final : public WrappingBackend {
 public:
  explicit OneByOne(std::vector<uint32_t>& hints) : WrappingBackend(std::make_unique<MemoryBackend>()), hints_(hints) {}
  void wake_after(uint32_t pieces) override { hints_.push_back(pieces); }
  size_t reap(std::span<Completion> ended, nanoseconds timeout) override {
    return WrappingBackend::reap(ended.first(1), timeout);
  }

 private:
  std::vector<uint32_t>& hints_;
};

// What the engine would wake for while so many blocks are with each drive, and fewer and fewer.
std::vector<uint32_t> hints_for(const std::vector<uint32_t>& depth_of_drive) {
  std::vector<uint32_t> hints;
  IoEngineOptions options{.drive = {.block_bytes = kBlock, .depth = 64}, .drives = {}, .on_stuck = {}};
  QueuedIoEngine engine(std::make_unique<OneByOne>(hints), options);
  std::vector<std::unique_ptr<MemoryFile>> files;
  OwnMemory memory(kBlock);
  std::vector<Transfer> transfers;
  for (uint32_t drive = 0; drive < depth_of_drive.size(); ++drive) {
    files.push_back(std::make_unique<MemoryFile>("a", kBlock, drive));
    for (uint32_t i = 0; i < depth_of_drive[drive]; ++i) {
      transfers.push_back(engine.read(*files.back(), 0, memory.lease()));
    }
  }
  for (Transfer& transfer : transfers) EXPECT_TRUE(std::move(transfer).wait().ok());
  return hints;
}

TEST(WakeAfter, IsAQuarterOfWhatIsUnderWay) {
  EXPECT_EQ(hints_for({16}), (std::vector<uint32_t>{4, 3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(hints_for({1}), std::vector<uint32_t>{1});
}

TEST(WakeAfter, LeavesNoDriveWithoutWork) {
  EXPECT_EQ(hints_for({32, 16}).front(), 4u);
  EXPECT_EQ(hints_for({32, 3}).front(), 1u) << "the second may be slow, but must not run dry unseen";
  EXPECT_EQ(hints_for({32, 0}).front(), 8u) << "who has nothing under way waits for nothing";
}

using Make = std::function<Result<std::unique_ptr<IoBackend>>()>;

class WakeAfterOf : public ::testing::TestWithParam<std::pair<const char*, Make>> {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<IoBackend>> made = GetParam().second();
    if (!made.ok()) GTEST_SKIP() << made.status().message();
    backend_ = std::move(made).value();
    auto file = DirectFile::create(folder_ / "a", 16 * kBlock, Existing::refuse, {.in_memory = InMemory::allow});
    ASSERT_TRUE(file.ok()) << file.status().message();
    file_ = std::move(file).value();
    QueuedIoEngine writer(ThreadBackend::make().value());  // what was never written needs no drive to be read
    ASSERT_TRUE(writer.write(*file_, 0, memory_.lease()).wait().ok());
  }
  void submit_reads(uint32_t count) {
    for (uint32_t tag = 0; tag < count; ++tag) {
      backend_->submit({Operation::read, file_.get(), tag * kBlock, memory_.bytes().data() + tag * kBlock,
                        static_cast<uint32_t>(kBlock), tag});
    }
    backend_->start();
  }

  ScratchFolder folder_;
  OwnMemory memory_{16 * kBlock};
  std::unique_ptr<DirectFile> file_;
  std::unique_ptr<IoBackend> backend_;
  std::array<Completion, 64> ended_;
};

TEST_P(WakeAfterOf, SleepsUntilSoManyHaveEnded) {
  constexpr size_t kLeast = 12, kRounds = 20;
  size_t slept = 0;
  for (size_t round = 0; round < kRounds; ++round) {
    submit_reads(16);
    backend_->wake_after(kLeast);
    size_t count = backend_->reap(ended_, std::chrono::seconds(60));
    slept += count >= kLeast ? 1 : 0;
    backend_->wake_after(1);
    while (count < 16) count += backend_->reap(ended_, std::chrono::seconds(60));
    EXPECT_EQ(count, 16u);
  }
  EXPECT_GE(slept, kRounds / 2) << "it may wake early now and then, as a ring's timer does";
}

TEST_P(WakeAfterOf, NeverSleepsForLongerThanItMay) {
  for (const milliseconds timeout : {milliseconds(20), milliseconds(400)}) {
    submit_reads(3);
    backend_->wake_after(4);  // more than there are
    const auto begin = std::chrono::steady_clock::now();
    size_t count = 0;
    while (count < 3) count += backend_->reap(ended_, timeout);
    EXPECT_EQ(count, 3u);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  }
}

TEST_P(WakeAfterOf, GivesWhatThereIsRoomForAndTheRestLater) {
  constexpr size_t kRoom = 5;
  submit_reads(16);
  backend_->wake_after(16);
  std::set<uint32_t> tags;
  while (tags.size() < 16) {
    const size_t count = backend_->reap(std::span(ended_).first(kRoom), std::chrono::seconds(60));
    ASSERT_LE(count, kRoom);
    for (size_t i = 0; i < count; ++i) EXPECT_TRUE(tags.insert(ended_[i].tag).second) << ended_[i].tag << " ends twice";
    backend_->wake_after(1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Backends, WakeAfterOf,
    ::testing::Values(std::pair<const char*, Make>{"io_uring", [] { return make_uring_backend(); }},
                      std::pair<const char*, Make>{"libaio", [] { return make_libaio_backend(); }},
                      std::pair<const char*, Make>{"threads", [] { return ThreadBackend::make(); }}),
    [](const auto& backend) { return std::string(backend.param.first); });

}  // namespace
}  // namespace penstock::aio
