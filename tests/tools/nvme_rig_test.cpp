#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <optional>

#include "tests/tools/on_a_drive.h"
#include "tools/nvme/probe.h"
#include "tools/nvme/steady.h"
#include "tools/nvme/update_rate.h"

namespace penstock::tools {
namespace {

TEST_F(OnADrive, JobMovesTheSharesItWasAskedFor) {
  ASSERT_NO_FATAL_FAILURE(make_rig());
  if (IsSkipped()) return;
  for (const double share : {0.0, 0.25, 0.54, 1.0}) {
    const Job job{.read_share = share, .block_bytes = 64 * kKiB, .depth = 4, .seconds = 0, .bytes = 64 * kMiB};
    const auto result = rig_->run(job, carry_on);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->read_bytes + result->written_bytes, job.bytes);
    EXPECT_EQ(result->requests, job.bytes / job.block_bytes);
    EXPECT_EQ(result->latency.count(), result->requests);
    EXPECT_EQ(result->read_latency.count(), result->read_bytes / job.block_bytes);
    EXPECT_EQ(result->write_latency.count(), result->written_bytes / job.block_bytes);
    EXPECT_EQ(result->latency.max_us(), std::max(result->read_latency.max_us(), result->write_latency.max_us()));
    EXPECT_NEAR(static_cast<double>(result->read_bytes) / static_cast<double>(job.bytes), share, 0.002);
    EXPECT_GT(result->gbps(), 0);
    EXPECT_GT(result->cpu_s, 0);
  }
}

TEST_F(OnADrive, JobEndsByTime) {
  ASSERT_NO_FATAL_FAILURE(make_rig());
  if (IsSkipped()) return;
  const auto result =
      rig_->run({.pattern = Pattern::random, .block_bytes = 4 * kKiB, .depth = 8, .seconds = 0.3}, carry_on);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_GE(result->seconds, 0.3);
  EXPECT_FALSE(result->rate.empty());
}

TEST_F(OnADrive, JobStopsWhenItIsToldTo) {
  ASSERT_NO_FATAL_FAILURE(make_rig());
  if (IsSkipped()) return;
  const auto result = rig_->run({.seconds = 3600}, [](double) { return Status(Code::kInterrupted, "enough"); });
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kInterrupted);
}

TEST_F(OnADrive, WrittenDataDoesNotCompress) {
  ASSERT_NO_FATAL_FAILURE(make_rig());
  if (IsSkipped()) return;
  std::ifstream file(rig_->folder(0).file().path(), std::ios::binary);
  std::vector<char> bytes(4 * kMiB);
  ASSERT_TRUE(file.read(bytes.data(), static_cast<std::streamsize>(bytes.size())));
  std::map<char, size_t> histogram;
  for (char byte : bytes) ++histogram[byte];
  EXPECT_EQ(histogram.size(), 256u);
  for (const auto& [byte, count] : histogram) EXPECT_NEAR(static_cast<double>(count), 16384, 1000) << int{byte};
}

TEST_F(OnADrive, ScratchVanishesWithTheRig) {
  ASSERT_NO_FATAL_FAILURE(make_rig());
  if (IsSkipped()) return;
  EXPECT_EQ(files_left(), 1u);
  rig_.reset();
  EXPECT_EQ(files_left(), 0u);
}

TEST_F(OnADrive, LayOutThatIsCutShortLeavesTheWrittenPartToMeasure) {
  auto rig =
      Rig::make({.paths = {folder_}, .size_bytes = kGiB, .memory_bytes = kMiB, .layout_seconds = 0.02}, carry_on);
  if (!rig.ok()) GTEST_SKIP() << rig.status().message();
  EXPECT_LE((*rig)->usable_bytes(0), kGiB);
  EXPECT_GT((*rig)->usable_bytes(0), 0u);
}

TEST_F(OnADrive, ProbeFindsTheRateOfEachAmountOfMemory) {
  auto rig = Rig::make({.paths = {folder_}, .size_bytes = 16 * kMiB, .memory_bytes = kProbeMemoryBytes}, carry_on);
  if (!rig.ok()) GTEST_SKIP() << rig.status().message();
  const auto probes = probe_drives(**rig, 0.1, carry_on);
  ASSERT_TRUE(probes.ok()) << probes.status().message();
  ASSERT_EQ(probes->size(), 1u);
  std::vector<uint64_t> amounts;
  for (const auto& [bytes, share] : probes->front().by_memory.points()) amounts.push_back(bytes);
  EXPECT_EQ(amounts, (std::vector<uint64_t>{16 * kMiB, 32 * kMiB, 64 * kMiB, 128 * kMiB}));
}

// By what the kernel counts of this process: of the first mixture a quarter is read.
TEST_F(OnADrive, SteadyMixesTheSharesThatItSays) {
  ASSERT_NO_FATAL_FAILURE(make_rig());
  if (IsSkipped()) return;
  auto moved = [] {
    std::ifstream counters("/proc/self/io");
    std::map<std::string, double> found;
    std::string name;
    for (double bytes = 0; counters >> name >> bytes;) found[name] = bytes;
    return std::pair(found["read_bytes:"], found["write_bytes:"]);
  };
  std::optional<std::pair<double, double>> before;
  double read = 0, written = 0;
  auto tick = [&](double done) {
    if (done < 1) return Status();
    if (!before) before = moved();
    const auto now = moved();
    read = now.first - before->first, written = now.second - before->second;
    return read + written < 16 * kMiB ? Status() : Status(Code::kInterrupted, "enough");
  };
  const SteadyOptions options{.write_budget_bytes = 16 * kMiB, .block_bytes = 64 * kKiB, .depth = 4};
  const auto steady = measure_steady(*rig_, 0, options, tick);
  if (steady.ok()) GTEST_SKIP() << "nothing is counted in /proc/self/io";
  ASSERT_EQ(steady.status().code(), Code::kInterrupted) << steady.status().message();
  EXPECT_NEAR(read / (read + written), 0.25, 0.1);
}

TEST_F(OnADrive, FirstFolderOfALockedPairIsFreeAgain) {
  ASSERT_NO_FATAL_FAILURE(make_rig());
  if (IsSkipped()) return;
  const auto second = ScratchFolder::open(folder_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kEnvironment);
  rig_.reset();
  EXPECT_TRUE(ScratchFolder::open(folder_).ok());
}

TEST(UpdateRate, IsTheTrafficOfMemoryWhateverItsAmount) {
  for (uint64_t bytes : {kUpdateMemoryBytes, 16 * kMiB, kMiB}) {
    const double gbps = measure_update_gbps(StateForm(), 1, bytes).value();
    EXPECT_GT(gbps, 0.01) << bytes;
    EXPECT_LT(gbps, 2000) << bytes;
  }
}

}  // namespace
}  // namespace penstock::tools
