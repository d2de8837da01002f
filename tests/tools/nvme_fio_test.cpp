#include <gtest/gtest.h>

#include "tests/tools/on_a_drive.h"
#include "tools/nvme/comparison.h"

namespace penstock::tools {
namespace {

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
  const FioComparison comparison{{}, {}, {{2, 1, 0.1, 0.3}, {1, 1, 0.3, 0.2}, {1, 2, 0.2, 0.4}}};
  EXPECT_EQ(comparison.ratio_median(), 1);
  EXPECT_EQ(comparison.ratio_min(), 0.5);
  EXPECT_EQ(comparison.ratio_max(), 2);
  EXPECT_EQ(comparison.ours_cpu_s_per_gb(), 0.2);
  EXPECT_EQ(comparison.fio_cpu_s_per_gb(), 0.3);
}

}  // namespace
}  // namespace penstock::tools
