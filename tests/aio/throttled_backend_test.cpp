#include "tests/support/throttled_backend.h"

#include <gtest/gtest.h>

#include "aio/queued_io_engine.h"
#include "tests/aio/test_files.h"
#include "tests/support/memory_backend.h"

namespace penstock::aio {
namespace {

using Seconds = std::chrono::duration<double>;

TEST(ThrottledBackend, KeepsToItsRatesAndLatency) {
  const ThrottleOptions options{
      .read_bytes_per_s = 100e6, .write_bytes_per_s = 50e6, .latency = std::chrono::milliseconds(5)};
  QueuedIoEngine engine(std::make_unique<ThrottledBackend>(std::make_unique<MemoryBackend>(), options));
  MemoryFile file("a", 8 * kMiB);
  OwnMemory memory(8 * kMiB);
  const double write_s = 8 * kMiB / options.write_bytes_per_s, read_s = 8 * kMiB / options.read_bytes_per_s;
  double best_write_s = 1e9, best_read_s = 1e9;
  for (int round = 0; round < 5; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(engine.write(file, 0, memory.lease()).wait().ok());
    const auto written = std::chrono::steady_clock::now();
    ASSERT_TRUE(engine.read(file, 0, memory.lease()).wait().ok());
    const auto read = std::chrono::steady_clock::now();
    best_write_s = std::min(best_write_s, Seconds(written - begin).count());
    best_read_s = std::min(best_read_s, Seconds(read - written).count());
  }
  EXPECT_GE(best_write_s, write_s) << "never faster than asked";
  EXPECT_GE(best_read_s, read_s);
  // What a busy machine adds is not in the best of five; half as long again would be a mistake of ours.
  EXPECT_LT(best_write_s, 1.5 * write_s + 0.005);
  EXPECT_LT(best_read_s, 1.5 * read_s + 0.005);
}

TEST(Watchdog, NamesARequestThatIsStuckOnce) {
  std::vector<std::string> reports;
  QueuedIoEngine engine(std::make_unique<ThrottledBackend>(std::make_unique<MemoryBackend>(),
                                                           ThrottleOptions{.latency = std::chrono::milliseconds(900)}),
                        {.drive = {},
                         .drives = {},
                         .stuck_after = std::chrono::milliseconds(100),
                         .on_stuck = [&](const std::string& report) { reports.push_back(report); }});
  MemoryFile file("rank0.seg", kMiB);
  OwnMemory memory(4096);
  ASSERT_TRUE(engine.read(file, 8192, memory.lease()).wait().ok());
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].substr(0, 42), "read 4096 B at 8192 of rank0.seg: with the");
}

}  // namespace
}  // namespace penstock::aio
