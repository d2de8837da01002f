// `penstock update` as a process: its rates from a profile; and, as root, on a real drive that fails while it runs:
// what it says, what it leaves, and that it goes on from there.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>

#include "aio/drive_info.h"
#include "tests/support/instrumented.h"
#include "tests/support/loop_drive.h"
#include "tests/support/watchdog.h"
#include "tools/nvme/profile_file.h"
#include "tools/penstock/store_flags.h"

namespace penstock::tools {
namespace {

struct Ran {
  int code = 0;
  std::vector<std::string> lines;
};

// Runs the command; `each` hears of every line of its answer as it comes, of its remarks and errors if `streams` says
// so.
Ran run(const std::string& words, const char* streams, const std::function<void(const std::string&)>& each = {}) {
  FILE* out = popen(text(PENSTOCK, " ", words, " ", streams).c_str(), "r");
  CHECK(out != nullptr);
  Ran ran;
  char line[4096];
  while (std::fgets(line, sizeof(line), out)) {
    ran.lines.emplace_back(line);
    ran.lines.back().pop_back();
    if (each) each(ran.lines.back());
  }
  const int how = pclose(out);
  ran.code = WIFEXITED(how) ? WEXITSTATUS(how) : -1;
  return ran;
}

nlohmann::json answer_of(const std::string& words) {
  const Ran ran = run(words + " --json", "2> /dev/null");
  EXPECT_EQ(ran.code, 0) << words;
  std::string all;
  for (const std::string& line : ran.lines) all += line;
  return nlohmann::json::parse(all, nullptr, false);
}

// Of host memory: what instruments a program takes more than the program does.
std::string budget(const char* plain) { return text(" --budget host=", test::kStride > 1 ? "4GiB" : plain); }

TEST(Update, OnADriveThatFailsMidwaySaysSoAndGoesOnWhenTheDriveIsBack) {
  Watchdog watchdog(std::chrono::seconds(500), "an update on a failing drive");
  aio::LoopDrive drive({.drive_mib = 160, .backing_mib = 176});
  if (!drive.ready()) GTEST_SKIP() << "needs root, loop devices and ext4";
  const std::string store = drive.folder() + "/store";
  // Little memory, so that the drive is read as well.
  const std::string flags = text("--params 1M --durability step --store ", store, budget("32MiB"), " --steps ");
  EXPECT_EQ(answer_of("update " + flags + "2")["steps"], 2);

  bool lost = false;
  const Ran failed = run("update " + flags + "1000000", "2>&1 > /dev/null", [&](const std::string& line) {
    if (line != "resuming after step 2") return;
    usleep(200'000);
    lost = drive.lose_backing();
  });
  ASSERT_TRUE(lost) << (failed.lines.empty() ? "" : failed.lines.back());
  ASSERT_GE(failed.lines.size(), 2u);
  const std::string& said = failed.lines[failed.lines.size() - 2];
  std::smatch match;
  const std::regex words("penstock: (tile [0-9]+ \\(.*\\): read|write) [0-9]+ B at [0-9]+ of " + store +
                         "/rank0.tiles: (EIO|ENOSPC) \\(.*\\); step ([0-9]+) is committed(, and step [0-9]+ may be)?");
  ASSERT_TRUE(std::regex_match(said, match, words)) << said;
  EXPECT_EQ(failed.code, match[2] == "EIO" ? 4 : 3);
  EXPECT_TRUE(failed.lines.back().starts_with("try: ")) << failed.lines.back();
  for (size_t i = 0; i + 2 < failed.lines.size(); ++i) EXPECT_FALSE(failed.lines[i].starts_with("penstock:"));

  ASSERT_TRUE(drive.return_backing());
  for (const auto& each : std::filesystem::directory_iterator(store)) EXPECT_EQ(each.path().filename(), "rank0.tiles");
  const uint64_t step = answer_of("checkpoint ls " + store)["step"];
  EXPECT_GE(step, std::stoull(match[3]));
  const std::string until = text(flags, step + 2);
  EXPECT_EQ(answer_of("update " + until)["steps"], step + 2);
  const nlohmann::json verified = answer_of("verify " + until);
  EXPECT_EQ(verified["words_different"], 0);
  EXPECT_EQ(verified["words_compared"], 4'000'000);
}

// A profile of the folder's drive, which reads and writes at that rate.
void save_profile_of(const std::string& folder, double gbps, const std::string& path) {
  MachineProfile machine;
  machine.host_gbps = 100;
  DriveRates drive;
  drive.path = folder;
  drive.device = aio::describe_drive(folder).value().device;
  drive.burst = MixCurve::flat(gbps);
  drive.flush_s = 0;
  put_drive(machine, drive);
  CHECK(save_profile(machine, path).ok());
}

TEST(Update, TakesItsRatesFromAProfileInsteadOfMeasuring) {
  const aio::ScratchFolder folder(std::filesystem::current_path());
  const std::string profile = folder / "profile.json";
  // All rests in memory, whatever the program takes of it, and is written every step.
  const std::string words = text("update --params 1M --durability step --steps 1 --force --budget host=4GiB --store ",
                                 folder / "store", " --machine ", profile);
  std::vector<double> predicted;
  for (double gbps : {1e-3, 2e-3}) {
    save_profile_of(folder.path(), gbps, profile);
    predicted.push_back(answer_of(words)["predicted_s"]);
  }
  EXPECT_GT(predicted[1], 5) << "12 MB at 2 MB/s";
  EXPECT_NEAR(predicted[0] / predicted[1], 2, 1e-2);
}

// A struck step ends long before what it writes does.
TEST(Update, CountsTheLastStepsTailInItsBytes) {
  const aio::ScratchFolder folder(std::filesystem::current_path());
  const std::string profile = folder / "profile.json";
  save_profile_of(folder.path(), 1, profile);
  const nlohmann::json answer =
      answer_of(text("update --params 4M --steps 1 --strike-share 1 --durability step --store ", folder / "store",
                     budget("40MiB"), " --machine ", profile));
  for (const nlohmann::json& step : answer["log"]) EXPECT_EQ(step["verdict"], "clipped");
  // A sanitizer's memory is not to be had within a budget that leaves anything on the drives.
  const bool from_drives = test::kStride == 1;
  for (const char* way : {"read", "written"}) {
    const double planned = answer["planned_bytes_per_parameter"][way];
    EXPECT_TRUE(planned > 1 || !from_drives) << way;
    // More where updates ran ahead of the strike.
    EXPECT_GE(answer["bytes_per_parameter"][way], 0.98 * planned) << way;
  }
}

TEST(Update, CountsWhatIsCommittedOnlyAtExitInItsBytes) {
  const aio::ScratchFolder folder(std::filesystem::current_path());
  const std::string profile = folder / "profile.json";
  save_profile_of(folder.path(), 1, profile);
  // All rests in memory.
  const nlohmann::json answer =
      answer_of(text("update --params 1M --steps 2 --durability exit --budget host=4GiB --store ", folder / "store",
                     " --machine ", profile));
  EXPECT_EQ(answer["planned_bytes_per_parameter"]["written"], 0);
  for (const nlohmann::json& step : answer["log"]) EXPECT_EQ(step["nvme_written_bytes"], 0);
  const double once = 12.0 / 2;
  EXPECT_GE(answer["bytes_per_parameter"]["written"], once);
  EXPECT_LE(answer["bytes_per_parameter"]["written"], 1.02 * once);
}

// The state of 1M parameters, 12 MB, at 1 GB/s and without a flush: 12 ms, in two steps 6 ms each.
TEST(Update, PredictsTheCommitAtExitAndItsShareInEachStep) {
  const aio::ScratchFolder folder(std::filesystem::current_path());
  const std::string profile = folder / "profile.json";
  save_profile_of(folder.path(), 1, profile);
  const std::string words = text("update --params 1M --steps 2 --force --budget host=4GiB --store ", folder / "store",
                                 " --machine ", profile, " --durability ");
  const nlohmann::json answer = answer_of(words + "exit"), commit = answer["commit_at_exit"];
  const double bytes = commit["written_bytes"], seconds = commit["predicted_s"];
  EXPECT_GE(bytes, 12e6);
  EXPECT_LE(bytes, 12.24e6);
  EXPECT_NEAR(seconds, bytes / 1e9, 1e-9);
  EXPECT_NEAR(commit["predicted_step_share_s"], seconds / 2, 1e-9);
  EXPECT_NEAR(answer["predicted_s"].get<double>() - answer["log"][0]["predicted_s"].get<double>(), seconds / 2, 1e-9);
  EXPECT_GT(commit["commit_s"], 0);
  EXPECT_TRUE(answer_of(words + "every:2")["commit_at_exit"].is_null()) << "its last step is durable";

  const Ran never = run(words + "every:0", "2>&1");
  EXPECT_EQ(never.code, static_cast<int>(Code::kUsage));
  ASSERT_FALSE(never.lines.empty());
  EXPECT_NE(never.lines[0].find("'every:0': is not known"), std::string::npos) << never.lines[0];

  // Of a run that ends between durable steps, before its steps and after them.
  const Ran ran = run(words + "every:3", "2> /dev/null");
  const std::regex line(
      "commit at exit: 11\\.[0-9]+ MiB written "
      "(once, predicted in 12[.0-9]* ms, 0\\.006 s for each of 2 steps|in [.0-9]+ m?s, predicted in 12[.0-9]* ms, .*)");
  EXPECT_EQ(std::ranges::count_if(ran.lines, [&](const std::string& said) { return std::regex_match(said, line); }), 2);
}

TEST(Update, WhereMoreMemoryIsAskedForThanThereIsTheAdviceFits) {
  const Status refused = refuse_more_than_memory(uint64_t{1} << 50, "--budget");
  EXPECT_EQ(refused.code(), Code::kDoesNotFit);
  const std::string flag = "--budget ";
  ASSERT_EQ(refused.remedy().find(flag), 0u) << refused.remedy();
  const Result<uint64_t> advised = host_budget(refused.remedy().substr(flag.size()));
  EXPECT_TRUE(advised.ok()) << advised.status().message();
}

TEST(Update, RefusesAFolderThatIsGivenTwiceAlsoWhereNothingIsMeasured) {
  const aio::ScratchFolder folder(std::filesystem::current_path());
  const std::string profile = folder / "profile.json";
  save_profile_of(folder.path(), 1, profile);
  const Ran ran = run(text("update --params 1M --store ", folder / "a", ",", folder / "a/../a", budget("32MiB"),
                           " --machine ", profile),
                      "2>&1");
  EXPECT_EQ(ran.code, 2);
  ASSERT_FALSE(ran.lines.empty());
  EXPECT_EQ(ran.lines[0], text("penstock: --store: ", folder / "a/../a", ": given twice"));
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
}

}  // namespace
}  // namespace penstock::tools
