#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "tools/nvme/comparison.h"
#include "tools/nvme/latency_histogram.h"
#include "tools/nvme/profile_file.h"
#include "tools/nvme/rig.h"
#include "tools/nvme/statistics.h"
#include "tools/nvme/steady.h"
#include "tools/nvme/update_rate.h"
#include "tools/system/limits.h"

namespace penstock::tools {
namespace {

namespace fs = std::filesystem;

TEST(LatencyHistogram, PercentilesAreWithinSixPercent) {
  for (uint64_t latency :
       {uint64_t{1}, uint64_t{15}, uint64_t{16}, uint64_t{1000}, uint64_t{123456}, uint64_t{98765432100}}) {
    LatencyHistogram histogram;
    histogram.add(latency);
    const double microseconds = static_cast<double>(latency) / 1e3;
    EXPECT_GE(histogram.percentile_us(0.5), microseconds * 0.999);
    EXPECT_LE(histogram.percentile_us(0.5), microseconds * 1.0626);
  }
}

TEST(LatencyHistogram, FindsPercentilesAmongMany) {
  LatencyHistogram histogram;
  for (uint64_t microsecond = 1; microsecond <= 1000; ++microsecond) histogram.add(microsecond * 1000);
  EXPECT_NEAR(histogram.percentile_us(0.5), 500, 35);
  EXPECT_NEAR(histogram.percentile_us(0.99), 990, 65);
  EXPECT_NEAR(histogram.percentile_us(1), 1000, 65);
  uint64_t counted = 0;
  for (const auto& [below, count] : histogram.by_powers_of_two()) counted += count;
  EXPECT_EQ(counted, 1000u);
  EXPECT_EQ(LatencyHistogram().percentile_us(0.5), 0);
}

TEST(LatencyHistogram, MeanAndMaximumAreExactAlsoOfTwoTogether) {
  LatencyHistogram reads, writes;
  EXPECT_EQ(reads.mean_us(), 0);
  EXPECT_EQ(reads.max_us(), 0);
  for (uint64_t nanoseconds : {1001, 1003, 5000}) reads.add(nanoseconds);
  EXPECT_DOUBLE_EQ(reads.mean_us(), 7.004 / 3);
  EXPECT_DOUBLE_EQ(reads.max_us(), 5);
  writes.add(9000);
  writes.add(reads);
  EXPECT_EQ(writes.count(), 4u);
  EXPECT_DOUBLE_EQ(writes.mean_us(), 16.004 / 4);
  EXPECT_DOUBLE_EQ(writes.max_us(), 9);
  EXPECT_NEAR(writes.percentile_us(0.5), 1.003, 0.07);
  EXPECT_DOUBLE_EQ(writes.percentile_us(1), 9) << "no percentile is above the maximum";
}

TEST(Median, IsTheMiddle) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
}

TEST(PlateauFinder, FindsWhereTheFastCacheEnded) {
  PlateauFinder finder;
  bool found = false;
  for (int i = 0; i < 20; ++i) found = finder.add(5.0 + 0.1 * (i % 2)) || found;
  EXPECT_FALSE(found) << "a plateau before any fall may be the cache itself";
  for (int i = 0; i < 8 && !found; ++i) found = finder.add(1.5);
  EXPECT_TRUE(found);
  EXPECT_NEAR(finder.burst_gbps(), 5, 0.1);
  EXPECT_NEAR(finder.recent_gbps(), 1.5, 0.01);
  ASSERT_TRUE(finder.fell_after());
  EXPECT_NEAR(static_cast<double>(*finder.fell_after()), 20, 3);
}

TEST(PlateauFinder, DoesNotStopWhileTheRateStillFalls) {
  PlateauFinder finder;
  double rate = 5;
  for (int i = 0; i < 30; ++i) EXPECT_FALSE(finder.add(rate *= 0.9));
}

// A folder on the drive that holds the build, since a temporary one may lie in memory.
class OnADrive : public testing::Test {
 protected:
  OnADrive() {
    std::string name = (fs::current_path() / "penstock-nvme-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~OnADrive() override { fs::remove_all(folder_); }

  void make_rig(uint64_t size_bytes = 16 * kMiB) {
    auto rig = Rig::make({.paths = {folder_}, .size_bytes = size_bytes, .memory_bytes = 4 * kMiB},
                         [](double) { return Status(); });
    if (!rig.ok()) GTEST_SKIP() << rig.status().message();
    rig_ = std::move(*rig);
  }
  size_t files_left() const { return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {})); }

  std::string folder_;
  std::unique_ptr<Rig> rig_;
};

Status carry_on(double) { return {}; }

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

TEST_F(OnADrive, InterruptedComparisonKeepsThePairsThatWereComplete) {
  if (!fio_version().ok()) GTEST_SKIP() << "needs fio";
  ASSERT_NO_FATAL_FAILURE(make_rig());
  if (IsSkipped()) return;
  FioComparison comparison{
      {.block_bytes = 64 * kKiB, .depth = 4, .seconds = 0.02}, {FioPages::small, FioWakes::for_each}, {}};
  const Status ended = compare_with_fio(
      *rig_, 3, [](double share) { return share < 0.33 ? Status() : Status(Code::kInterrupted, "enough"); },
      comparison);
  EXPECT_EQ(ended.code(), Code::kInterrupted) << ended.message();
  ASSERT_EQ(comparison.pairs.size(), 1u);
  EXPECT_GT(comparison.ratio_median(), 0);
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

TEST_F(OnADrive, FirstFolderOfALockedPairIsFreeAgain) {
  ASSERT_NO_FATAL_FAILURE(make_rig());
  if (IsSkipped()) return;
  const auto second = ScratchFolder::open(folder_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kEnvironment);
  rig_.reset();
  EXPECT_TRUE(ScratchFolder::open(folder_).ok());
}

// Before minutes of measuring, and without making the folder of a path that was mistyped.
TEST_F(OnADrive, WhereNoProfileCanBeKeptIsSaidAtOnce) {
  const auto refused = profile_path_to_write(folder_ + "/absent/profile.json");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kUsage);
  EXPECT_FALSE(fs::exists(folder_ + "/absent"));
  EXPECT_EQ(*profile_path_to_write(folder_ + "/profile.json"), folder_ + "/profile.json");
}

TEST_F(OnADrive, ProfileKeepsWhatAnEarlierRunFound) {
  const std::string path = folder_ + "/deep/er/profile.json";
  auto profile = load_or_begin_profile(path);
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_GT(profile->host_bytes, 0u);
  DriveRates drive;
  drive.path = "/mnt/a";
  drive.device = "nvme0n1";
  drive.burst = MixCurve({{0, 4}, {1, 6}});
  drive.sustained = MixCurve({{0, 2}, {1, 6}});
  put_drive(*profile, drive);
  ASSERT_TRUE(save_profile(*profile, path).ok());

  auto again = load_or_begin_profile(path);
  ASSERT_TRUE(again.ok());
  DriveRates fresh = drive;
  fresh.burst = MixCurve::flat(5);
  fresh.sustained.reset();
  put_drive(*again, fresh);
  ASSERT_EQ(again->drives.size(), 1u);
  EXPECT_EQ(again->drives[0].burst.gbps(0), 5);
  ASSERT_TRUE(again->drives[0].sustained);
  EXPECT_EQ(again->drives[0].sustained->gbps(0), 2);

  fresh.device = "nvme9n1";  // another drive at the same path
  put_drive(*again, fresh);
  EXPECT_FALSE(again->drives[0].sustained);
}

TEST(Profile, HostIsThisMachineAndTheRestStays) {
  MachineProfile profile;
  profile.name = "of another day";
  profile.devices = 2;
  profile.device_flops = 1e12;
  put_host(profile, 20);
  EXPECT_NE(profile.name, "of another day");
  EXPECT_EQ(profile.threads, usable_processors());
  EXPECT_EQ(profile.host_bytes, usable_memory_bytes(SystemFiles()));
  EXPECT_EQ(profile.host_gbps, 20);
  EXPECT_EQ(profile.devices, 2u);
  EXPECT_EQ(profile.device_flops, 1e12);
}

TEST(UpdateRate, IsTheTrafficOfMemoryWhateverItsAmount) {
  for (uint64_t bytes : {kUpdateMemoryBytes, 16 * kMiB, kMiB}) {
    const double gbps = measure_update_gbps(StateForm(), 1, bytes).value();
    EXPECT_GT(gbps, 0.01) << bytes;
    EXPECT_LT(gbps, 2000) << bytes;
  }
}

TEST_F(OnADrive, FileThatIsNoProfileIsRefused) {
  const std::string path = folder_ + "/notes";
  for (const char* content :
       {"", "{}", "not json", "{\"schema\": \"penstock.machine/1\", \"drives\": [{\"mix_curve\": 3}]}"}) {
    std::ofstream(path) << content;
    const auto profile = load_or_begin_profile(path);
    ASSERT_FALSE(profile.ok()) << content;
    EXPECT_EQ(profile.status().code(), Code::kUsage);
  }
}

TEST_F(OnADrive, FileThatIsFarTooLongForAProfileIsNotRead) {
  const std::string path = folder_ + "/film";
  std::ofstream(path) << "\"penstock.machine/";
  fs::resize_file(path, uint64_t{1} << 40);
  const auto profile = load_or_begin_profile(path);
  ASSERT_FALSE(profile.ok());
  EXPECT_NE(profile.status().message().find("not a machine profile: 1099511627776 B"), std::string::npos)
      << profile.status().message();
}

TEST(Fio, OutputBecomesRates) {
  const auto result = parse_fio_output(
      "note: something\n{\"jobs\": [{\"error\": 0, \"usr_cpu\": 2.0, \"sys_cpu\": 8.0,"
      "\"read\": {\"io_bytes\": 4000000000, \"runtime\": 2000}, \"write\": {\"io_bytes\": 0, \"runtime\": 0}}]}");
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_DOUBLE_EQ(result->gbps, 2);
  EXPECT_DOUBLE_EQ(result->cpu_s_per_gb, 0.05);
  const std::string moved = "\"io_bytes\": 4000, \"runtime\": 2", none = "\"write\": {}";
  for (const std::string& broken : std::vector<std::string>{
           "", "fio: failed", "{", "{\"jobs\": []}", "{\"jobs\": {}}", "{\"jobs\": 3}", "{\"jobs\": [3]}",
           "{\"jobs\": [{}]}", "{\"jobs\": [{\"error\": 5}]}", "{\"jobs\": [{\"read\": 1, \"write\": []}]}",
           "{\"jobs\": [{\"read\": {\"io_bytes\": \"all\", \"runtime\": 2}, " + none + "}]}",
           "{\"jobs\": [{\"read\": {\"io_bytes\": 1e300, \"runtime\": 1e-300}, " + none + "}]}",
           "{\"jobs\": [{\"read\": {" + moved + "}, " + none + ", \"usr_cpu\": -3}]}"}) {
    EXPECT_EQ(parse_fio_output(broken).status().code(), Code::kEnvironment) << broken;
  }
}

TEST(Fio, GetsItsBestSettings) {
  const Job job{.read_share = 0.5, .block_bytes = kMiB, .depth = 8, .seconds = 2};
  const std::vector<std::string> both = fio_settings(job, {"/a", "/b"}, FioWay());
  for (const char* setting : {"rw=rw", "rwmixread=50", "iodepth=16", "filename=/a:/b", "fixedbufs=1", "registerfiles=1",
                              "iomem=mmaphuge", "runtime=2000ms", "bs=1048576", "iodepth_batch_complete_min=4"}) {
    EXPECT_TRUE(std::ranges::count(both, setting) == 1) << setting;
  }
  for (const std::string& setting : fio_settings(job, {"/a"}, {FioPages::small, FioWakes::for_each})) {
    EXPECT_EQ(setting.find("complete_min"), std::string::npos) << setting;
    EXPECT_EQ(setting.find("huge"), std::string::npos) << setting;
  }
}

TEST(Fio, JobFileHasEachDriveWithItsOwnDepthAndSize) {
  const Job job{.read_share = 0.5, .block_bytes = kMiB, .depth = 8, .seconds = 2};
  const std::string file = fio_job_file(job, {{"/a", kGiB}, {"/b", 2 * kGiB}});
  for (const char* part : {"[global]", "\niodepth=8\n", "\nfixedbufs=1\n", "\nrwmixread=50\n", "\niomem_align=2m\n",
                           ";   GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio FILE\n",
                           "\n[drive0]\nfilename=/a\nsize=1073741824\n[drive1]\nfilename=/b\nsize=2147483648\n"}) {
    EXPECT_NE(file.find(part), std::string::npos) << part << " is not in\n" << file;
  }
  for (const auto& [engine, word] : {std::pair{FioEngine::libaio, "libaio"}, {FioEngine::psync, "psync"}}) {
    const std::string other = fio_job_file(job, {{"/a", kGiB}}, engine);
    EXPECT_NE(other.find(penstock::text("\nioengine=", word, "\n")), std::string::npos) << other;
    EXPECT_EQ(other.find("fixedbufs"), std::string::npos) << "of io_uring alone: " << other;
  }
  const std::string threads = fio_job_file(job, {{"/a", kGiB}}, FioEngine::psync);
  EXPECT_NE(threads.find("\niodepth=1\n"), std::string::npos) << threads;
  EXPECT_NE(threads.find("\nnumjobs=8\n"), std::string::npos) << threads;
  EXPECT_NE(threads.find("\nsize=134217728\noffset_increment=134217728\n"), std::string::npos) << threads;
  // fio demands reserved pages for this, which a machine as it comes has not.
  EXPECT_EQ(file.find("\niomem=mmaphuge"), std::string::npos);
}

TEST(FioComparison, RatiosAreOfPairs) {
  const FioComparison comparison{{}, {}, {{2, 1, 0.1, 0.2}, {1, 1, 0.3, 0.2}, {1, 2, 0.2, 0.4}}};
  EXPECT_EQ(comparison.ratio_median(), 1);
  EXPECT_EQ(comparison.ratio_min(), 0.5);
  EXPECT_EQ(comparison.ratio_max(), 2);
  EXPECT_EQ(comparison.ours_cpu_s_per_gb(), 0.2);
}

}  // namespace
}  // namespace penstock::tools
