#include "aio/throttled_backend.h"

#include <gtest/gtest.h>

#include "aio/engine.h"
#include "aio/memory_backend.h"
#include "tests/aio/test_files.h"

namespace penstock::aio {
namespace {

using Seconds = std::chrono::duration<double>;

TEST(ThrottledBackend, KeepsToItsRatesAndLatency) {
  const ThrottleOptions options{
      .read_bytes_per_s = 400e6, .write_bytes_per_s = 100e6, .latency = std::chrono::milliseconds(5)};
  Engine engine(std::make_unique<ThrottledBackend>(std::make_unique<MemoryBackend>(), options));
  MemoryFile file("a", 16 * kMiB);
  OwnMemory memory(16 * kMiB);
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(engine.write(file, 0, memory.lease()).wait().ok());
  const auto written = std::chrono::steady_clock::now();
  ASSERT_TRUE(engine.read(file, 0, memory.lease()).wait().ok());
  const auto read = std::chrono::steady_clock::now();
  // Never faster than asked. Slower by what a busy machine adds; half as fast again would be a mistake of ours.
  EXPECT_GE(Seconds(written - begin).count(), 16 * kMiB / 100e6);
  EXPECT_LT(Seconds(written - begin).count(), 1.5 * 16 * kMiB / 100e6);
  EXPECT_GE(Seconds(read - written).count(), 16 * kMiB / 400e6);
  EXPECT_LT(Seconds(read - written).count(), 1.5 * 16 * kMiB / 400e6 + 0.02);
}

TEST(Watchdog, NamesARequestThatIsStuckOnce) {
  std::vector<std::string> reports;
  Engine engine(std::make_unique<ThrottledBackend>(std::make_unique<MemoryBackend>(),
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
