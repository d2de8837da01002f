// How long the caller may skip polling: a quarter of the time for which the drives are busy, and no time at all where
// the pause would gather no completions.
#include <gtest/gtest.h>

#include "aio/queued_io_engine.h"
#include "aio/recent_rate.h"
#include "tests/aio/test_files.h"
#include "tests/support/memory_backend.h"
#include "tests/support/throttled_backend.h"

namespace penstock::aio {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// So slow that the machine keeps up, whatever else it does.
constexpr uint64_t kBlock = 16 * kKiB;
constexpr double kBytesPerSecond = 1e9;

TEST(RecentRate, IsOfTheBytesOfASpan) {
  CoarseClock::time_point now{std::chrono::hours(1)};
  RecentRate rate;
  rate.add(kGiB, now);
  EXPECT_EQ(rate.time_for(kMiB), nanoseconds(0)) << "since when they have been under way nobody knows";
  for (int i = 0; i < 10; ++i) rate.add(1'000'000, now += milliseconds(10));
  EXPECT_NEAR(static_cast<double>(rate.time_for(1'000'000).count()), 10e6, 1e3);
}

TEST(RecentRate, ForgetsSlowlyWhatAnIdleMomentHides) {
  CoarseClock::time_point now{std::chrono::hours(1)};
  RecentRate rate;
  rate.add(0, now);
  rate.add(1'000'000, now += milliseconds(100));
  const nanoseconds before = rate.time_for(kMiB);
  rate.add(1, now += milliseconds(100));
  EXPECT_NEAR(static_cast<double>(before.count()) / static_cast<double>(rate.time_for(kMiB).count()), 0.9, 1e-3);
  rate.add(2'000'000, now += milliseconds(100));
  EXPECT_NEAR(static_cast<double>(rate.time_for(1'000'000).count()), 50e6, 1e3) << "faster is believed at once";
}

class PollPause : public ::testing::Test {
 protected:
  // So many blocks more are under way on the drive.
  void ask(uint32_t drive, uint32_t blocks) {
    for (uint32_t i = 0; i < blocks; ++i) {
      const MemoryFile& file = files_[drive];
      transfers_.push_back(engine_.read(file, 0, Lease::over(Tier::host, memory_.bytes().first(file.size_bytes()))));
    }
  }
  void finish() {
    for (Transfer& transfer : transfers_) EXPECT_TRUE(std::move(transfer).wait().ok());
    transfers_.clear();
  }
  void learn_rates() {
    const auto until = std::chrono::steady_clock::now() + milliseconds(250);
    while (std::chrono::steady_clock::now() < until) {
      ask(0, 32);
      ask(1, 32);
      ask(2, 2);
      finish();
    }
  }

  static constexpr uint64_t kLargeBlock = 256 * kKiB;  // 262 us of the drive's time

  MemoryFile files_[3]{{"a", kBlock, 0}, {"b", kBlock, 1}, {"c", kLargeBlock, 2}};
  OwnMemory memory_{kLargeBlock};
  QueuedIoEngine engine_{std::make_unique<ThrottledBackend>(std::make_unique<MemoryBackend>(),
                                                            ThrottleOptions{.read_bytes_per_s = kBytesPerSecond,
                                                                            .write_bytes_per_s = kBytesPerSecond}),
                         {.drive = {.block_bytes = kLargeBlock, .depth = 64}, .drives = {}, .on_stuck = {}}};
  std::vector<Transfer> transfers_;
};

TEST_F(PollPause, IsZeroBeforeTheDrivesRateIsKnown) {
  ask(0, 32);
  EXPECT_EQ(engine_.poll_pause(), nanoseconds(0));
  finish();
}

TEST_F(PollPause, IsZeroWithNothingOrLittleInFlight) {
  learn_rates();
  EXPECT_EQ(engine_.poll_pause(), nanoseconds(0));
  ask(0, 7);
  EXPECT_EQ(engine_.poll_pause(), nanoseconds(0)) << "a quarter of it is one";
  ask(1, 32);
  EXPECT_EQ(engine_.poll_pause(), nanoseconds(0)) << "the first may run dry unseen";
  finish();
}

TEST_F(PollPause, IsZeroWhileACompletionIsUndelivered) {
  learn_rates();
  ask(0, 32);
  Transfer nothing = engine_.read(files_[0], 0, Lease());
  EXPECT_EQ(engine_.poll_pause(), nanoseconds(0));
  finish();
}

TEST_F(PollPause, IsAQuarterOfTheTimeTheDriveIsBusy) {
  learn_rates();
  ask(0, 32);
  ask(1, 8);  // 131 us of work at the drive's rate; the machine may be slower than the throttle
  EXPECT_GT(engine_.poll_pause(), microseconds(10));
  EXPECT_LE(engine_.poll_pause(), microseconds(50));
  finish();
  ask(0, 64);  // 1 ms of work
  EXPECT_EQ(engine_.poll_pause(), microseconds(50)) << "pieces that end are not to lie about for long";
  finish();
}

TEST_F(PollPause, IsZeroWherePiecesEndFarApart) {
  learn_rates();
  ask(2, 32);
  EXPECT_EQ(engine_.poll_pause(), nanoseconds(0));
  finish();
}

}  // namespace
}  // namespace penstock::aio
