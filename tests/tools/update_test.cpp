// `penstock update` as a process, on a real drive that fails while it runs: what it says, what it leaves, and that it
// goes on from there. Needs root.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/support/instrumented.h"
#include "tests/support/loop_drive.h"
#include "tests/support/watchdog.h"

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

TEST(Update, OnADriveThatFailsMidwaySaysSoAndGoesOnWhenTheDriveIsBack) {
  Watchdog watchdog(std::chrono::seconds(500), "an update on a failing drive");
  aio::LoopDrive drive({.drive_mib = 160, .backing_mib = 176});
  if (!drive.ready()) GTEST_SKIP() << "needs root, loop devices and ext4";
  const std::string store = drive.folder() + "/store";
  // Little memory, so that the drive is read as well; what instruments a program takes more than that.
  const std::string flags = text("--params 1M --durability step --store ", store,
                                 " --budget host=", test::kStride > 1 ? "4GiB" : "32MiB", " --steps ");
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
  const std::regex words("penstock: (read|write) [0-9]+ B at [0-9]+ of " + store +
                         "/rank0.tiles: (EIO|ENOSPC) \\(.*\\)");
  ASSERT_TRUE(std::regex_match(said, match, words)) << said;
  EXPECT_EQ(failed.code, match[2] == "EIO" ? 4 : 3);
  EXPECT_TRUE(failed.lines.back().starts_with("try: ")) << failed.lines.back();
  for (size_t i = 0; i + 2 < failed.lines.size(); ++i) EXPECT_FALSE(failed.lines[i].starts_with("penstock:"));

  ASSERT_TRUE(drive.return_backing());
  for (const auto& each : std::filesystem::directory_iterator(store)) EXPECT_EQ(each.path().filename(), "rank0.tiles");
  const uint64_t step = answer_of("checkpoint ls " + store)["step"];
  EXPECT_GE(step, 2u);
  const std::string until = text(flags, step + 2);
  EXPECT_EQ(answer_of("update " + until)["steps"], step + 2);
  const nlohmann::json verified = answer_of("verify " + until);
  EXPECT_EQ(verified["words_different"], 0);
  EXPECT_EQ(verified["words_compared"], 4'000'000);
}

}  // namespace
}  // namespace penstock::tools
