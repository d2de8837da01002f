// What the verbs of `penstock nvme` print: rows as they are made, reads and writes apart, and what an interrupted run
// keeps.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>

#include "tests/aio/test_files.h"
#include "tools/nvme/fio.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/nvme_results.h"

namespace penstock::tools {
namespace {

// Four reads of 100 us and twelve writes of 300 us in a tenth of a second.
TEST(BenchResults, OfAMixtureReadsAndWritesAreApartInRowsAndInJson) {
  const Job job{.read_share = 0.25, .block_bytes = kMiB, .depth = 8};
  JobResult result;
  result.seconds = 0.1;
  result.requests = 16;
  result.read_bytes = 4 * kMiB;
  result.written_bytes = 12 * kMiB;
  for (int i = 0; i < 4; ++i) result.read_latency.add(100'000);
  for (int i = 0; i < 12; ++i) result.write_latency.add(300'000);
  result.latency.add(result.read_latency);
  result.latency.add(result.write_latency);
  const Json json = result_json(job, result, "threads");
  EXPECT_DOUBLE_EQ(json["read"]["gbps"], 0.04194304);
  EXPECT_DOUBLE_EQ(json["read"]["iops"], 40);
  EXPECT_DOUBLE_EQ(json["read"]["latency_us"]["mean"], 100);
  EXPECT_DOUBLE_EQ(json["write"]["gbps"], 3 * 0.04194304);
  EXPECT_DOUBLE_EQ(json["write"]["iops"], 120);
  EXPECT_DOUBLE_EQ(json["write"]["latency_us"]["max"], 300);
  EXPECT_DOUBLE_EQ(json["latency_us"]["mean"], 250);
  EXPECT_DOUBLE_EQ(json["latency_us"]["max"], 300);

  const std::string rows = ResultTable({job}).rows(job, result);
  const std::regex expected(
      "  25 % read 1MiB depth 8 .* 160 .*\n"
      "    its reads .* 0\\.04 .* 40 .* 100 .*\n"
      "    its writes .* 0\\.13 .* 120 .* 300\n");
  EXPECT_TRUE(std::regex_match(rows, expected)) << rows;
}

TEST(BenchResults, OfReadsAloneHaveOneRowAndNoWrites) {
  const Job job{.read_share = 1, .block_bytes = kMiB, .depth = 8};
  JobResult result;
  result.seconds = 1;
  result.requests = 1;
  result.read_bytes = kMiB;
  result.read_latency.add(100'000);
  result.latency.add(result.read_latency);
  EXPECT_EQ(std::ranges::count(ResultTable({job}).rows(job, result), '\n'), 1);
  EXPECT_TRUE(result_json(job, result, "threads")["write"].is_null());
}

TEST(BenchResults, HaveThePercentilesThatTheyName) {
  const Job job{.read_share = 0, .block_bytes = kMiB, .depth = 8};
  JobResult result;
  result.seconds = 1;
  for (const auto& [count, nanoseconds] : {std::pair(960, 100'000), {35, 1'000'000}, {4, 10'000'000}, {1, 50'000'000}})
    for (int i = 0; i < count; ++i) result.write_latency.add(static_cast<uint64_t>(nanoseconds));
  result.latency.add(result.write_latency);
  for (const Json& latency : {result_json(job, result, "threads")["latency_us"],
                              result_json(job, result, "threads")["write"]["latency_us"]}) {
    // A bucket is at most a sixteenth wide.
    EXPECT_NEAR(latency["p50"], 100, 7);
    EXPECT_NEAR(latency["p99"], 1000, 63);
    EXPECT_NEAR(latency["p999"], 10000, 630);
    EXPECT_EQ(latency["max"], 50000);
  }
}

TEST(NvmeBench, TakesJobsUpToTheMostThatMayBeUnderWay) {
  EXPECT_TRUE(check_job_size(kGiB, 4).ok());
  EXPECT_TRUE(check_job_size(kMiB, 4096).ok());
  EXPECT_TRUE(check_job_size(4 * kKiB, 4096).ok());
  EXPECT_FALSE(check_job_size(4 * kKiB, 4097).ok());
  EXPECT_FALSE(check_job_size(kGiB + 4 * kKiB, 1).ok());
  EXPECT_FALSE(check_job_size(6 * kKiB, 1).ok());
  const Status refused = check_job_size(kGiB, 5);
  EXPECT_EQ(refused.message(), "depth: 5: 1 to 4 expected with blocks of 1GiB");
}

struct Interrupted {
  int code = 0;
  std::string printed;  // results, progress and errors
};

// Runs the command until it prints a line that has this, and asks it to stop.
Interrupted interrupted_at(const std::string& part, const std::string& words) {
  FILE* out = popen(text("echo $$; exec ", PENSTOCK, " ", words, " 2>&1").c_str(), "r");
  CHECK(out != nullptr);
  char line[4096];
  CHECK(std::fgets(line, sizeof(line), out) != nullptr);
  const pid_t process = std::stoi(line);
  const std::regex wanted(part);
  Interrupted ended;
  bool is_asked = false;
  while (std::fgets(line, sizeof(line), out)) {
    ended.printed += line;
    if (!is_asked && std::regex_search(line, wanted)) is_asked = kill(process, SIGINT) == 0;
  }
  const int how = pclose(out);
  ended.code = WIFEXITED(how) ? WEXITSTATUS(how) : -1;
  return ended;
}

size_t times_in(const std::string& all, const std::string& part) {
  size_t times = 0;
  for (size_t at = all.find(part); at != std::string::npos; at = all.find(part, at + 1)) ++times;
  return times;
}

// So many jobs that, were rows printed at the end, all would have run before the reader of the first can ask to stop.
constexpr size_t kJobs = 400;

std::string bench_of_many_jobs(const std::string& folder) {
  std::string depths = "1";
  for (size_t i = 1; i < kJobs; ++i) depths += ",1";
  return text("nvme bench ", folder, " --size 4MiB --duration 20ms --read-share 1 --depth ", depths);
}

bool is_empty(const aio::ScratchFolder& folder) { return std::filesystem::is_empty(folder.path()); }

TEST(NvmeBench, PrintsRowsAsJobsEndAndKeepsThemWhereItIsInterrupted) {
  const aio::ScratchFolder folder(std::filesystem::current_path());
  const Interrupted ended = interrupted_at("read 1MiB depth 1 ", bench_of_many_jobs(folder.path()));
  EXPECT_EQ(ended.code, 130);
  const size_t rows = times_in(ended.printed, "read 1MiB depth 1 ");
  EXPECT_GE(rows, 1u) << ended.printed;
  EXPECT_LT(rows, kJobs);
  EXPECT_EQ(times_in(ended.printed, text("incomplete: ", rows, " of ", kJobs, " jobs were measured\n")), 1u)
      << ended.printed;
  EXPECT_TRUE(is_empty(folder));
}

TEST(NvmeBench, HasTheResultsOfAnInterruptedRunInJsonToo) {
  const aio::ScratchFolder folder(std::filesystem::current_path());
  const Interrupted ended =
      interrupted_at("\"share\":0.0[1-9].*read 1MiB", bench_of_many_jobs(folder.path()) + " --json --progress json");
  EXPECT_EQ(ended.code, 130);
  const size_t begin = ended.printed.find("{\n"), end = ended.printed.rfind("\n}\n");
  ASSERT_LT(begin, end) << ended.printed;
  const Json answer = Json::parse(ended.printed.substr(begin, end + 2 - begin), nullptr, false);
  ASSERT_FALSE(answer.is_discarded()) << ended.printed;
  EXPECT_EQ(answer["interrupted"], true);
  EXPECT_EQ(answer["error"]["code"], 130);
  ASSERT_GE(answer["results"].size(), 3u);
  EXPECT_LT(answer["results"].size(), kJobs);
  EXPECT_GT(answer["results"][0]["gbps"], 0);
}

std::string compared_in(const aio::ScratchFolder& folder) {
  return interrupted_at("^ours: ",
                        text("nvme compare ", folder.path(), " --size 16MiB --duration 200ms --depth 1 --pairs 1"))
      .printed;
}

TEST(NvmeCompare, SaysThatFioIsAtADisadvantageWhereItHasSmallPages) {
  if (!fio_version().ok()) GTEST_SKIP() << "needs fio";
  const aio::ScratchFolder folder(std::filesystem::current_path());
  const std::string printed = compared_in(folder);
  const size_t small = times_in(printed, " 4 KiB pages;"), huge = times_in(printed, " 2 MiB pages;");
  EXPECT_EQ(small + huge, 1u) << printed;
  EXPECT_EQ(times_in(printed, "flatters our engine"), small) << printed;
}

// As where another process takes those that were free.
TEST(NvmeCompare, GivesFioSmallPagesWhereItIsRefusedHugeOnes) {
  if (!fio_version().ok()) GTEST_SKIP() << "needs fio";
  const aio::ScratchFolder folder(std::filesystem::current_path()), programs(std::filesystem::current_path());
  const std::string path = std::getenv("PATH");
  const std::string fio = programs.path() + "/fio";
  std::ofstream(fio) << "#!/bin/sh\ncase \"$*\" in *mmaphuge*) exit 1;; esac\nPATH='" << path << "' exec fio \"$@\"\n";
  std::filesystem::permissions(fio, std::filesystem::perms::owner_all);
  setenv("PATH", (programs.path() + ":" + path).c_str(), 1);
  const std::string printed = compared_in(folder);
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(times_in(printed, " 4 KiB pages;"), 1u) << printed;
  EXPECT_EQ(times_in(printed, "flatters our engine"), 1u) << printed;
}

// Of the depths that are within a hundredth of the fastest, the one that costs the processor least.
TEST(NvmeCompare, GivesFioTheCheapestOfItsFastJobs) {
  const aio::ScratchFolder folder(std::filesystem::current_path()), programs(std::filesystem::current_path());
  const std::string path = std::getenv("PATH");
  const std::string fio = programs.path() + "/fio";
  // Bytes in a second and shares of the processor by depth: 8 is nearly as fast as 32, which is the fastest, and
  // cheaper.
  std::ofstream(fio) << R"sh(#!/bin/sh
case "$*" in
  --version) echo fio-3.0; exit 0;;
  *batch_complete_min*) bytes=100000000 cpu=1;;
  *iodepth=8\ *) bytes=1995000000 cpu=10;;
  *iodepth=16\ *) bytes=1996000000 cpu=15;;
  *iodepth=32\ *) bytes=2000000000 cpu=40;;
  *) bytes=1000000000 cpu=1;;
esac
echo "{\"jobs\": [{\"error\": 0, \"usr_cpu\": $cpu, \"read\": {\"io_bytes\": $bytes, \"runtime\": 1000}, \"write\": {}}]}"
)sh";
  std::filesystem::permissions(fio, std::filesystem::perms::owner_all);
  setenv("PATH", (programs.path() + ":" + path).c_str(), 1);
  const Interrupted ended = interrupted_at(
      "never", text("nvme compare ", folder.path(), " --size 16MiB --block 4KiB --duration 20ms --pairs 1 --goal 0"));
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(ended.code, 0) << ended.printed;
  EXPECT_EQ(times_in(ended.printed, "read 4KiB depth 8 "), 2u) << ended.printed;  // half of reads, too
  EXPECT_EQ(times_in(ended.printed, "write 4KiB depth 8 "), 1u) << ended.printed;
}

// Two runs into the sweep, which begins at a share of 5 / 11 and has 62.
TEST(NvmeTune, SaysWhatIsBestOfWhatItHadMeasuredWhereItIsInterrupted) {
  const aio::ScratchFolder folder(std::filesystem::current_path());
  const Interrupted ended = interrupted_at(
      "\"share\":0\\.(4[7-9]|[5-8])", text("nvme tune ", folder.path(), " --size 16MiB --duration 6s --progress json"));
  EXPECT_EQ(ended.code, 130);
  EXPECT_EQ(times_in(ended.printed, "best: blocks of "), 1u) << ended.printed;
  EXPECT_EQ(times_in(ended.printed, " shapes and 0 of 3 engines were measured\n"), 1u) << ended.printed;
  EXPECT_TRUE(is_empty(folder));
}

}  // namespace
}  // namespace penstock::tools
