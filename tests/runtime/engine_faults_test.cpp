// Requests that fail in the middle of a step of the real engine: the step ends with a message that says what, where and
// how much, the store keeps the last committed step, and opening it again goes on from there.
//
// FAULT_SEEDS sets how many random histories are run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>
#include <set>

#include "tests/support/engine_crash_world.h"
#include "tests/support/faulty_backend.h"
#include "tests/support/watchdog.h"

namespace penstock::engine {
namespace {

using aio::Fault;

uint64_t seeds() {
  const char* asked = std::getenv("FAULT_SEEDS");
  return asked ? std::strtoull(asked, nullptr, 10) : 40;
}

struct Kind {
  const char* name;
  Fault fault;
  double chance;
  const char* error;
};

class EngineFaults : public testing::TestWithParam<EngineCrashSetting> {
 protected:
  EngineFaults() : world_(GetParam()) {}

  // Six steps on drives that fail as asked; what is there then is a committed step, and goes on.
  Status run(aio::FaultOptions faults) {
    aio::RecordedDrives drives = world_.new_drives();
    uint64_t promised = 0;
    Status status = world_.run(
        drives, 6, faults.seed,
        [&] { return std::make_unique<aio::FaultyBackend>(std::make_unique<aio::MemoryBackend>(), faults); },
        [&](uint64_t step) { promised = step; });
    EXPECT_EQ(world_.check(drives, promised), "") << status.message();
    if (!status.ok()) expect_step_in(status.message(), promised);
    return status;
  }

  // What was under way as the step failed may have become durable since.
  static void expect_step_in(const std::string& message, uint64_t promised) {
    std::smatch said;
    const bool says =
        std::regex_search(message, said, std::regex("; step ([0-9]+) is committed(, and step ([0-9]+) may be)?$"));
    if (!says && promised == 0) return;  // opening may have failed: no step was begun
    ASSERT_TRUE(says) << message;
    const uint64_t committed = std::stoull(said[1]);
    if (committed != promised) {
      EXPECT_EQ(said[3], std::to_string(promised)) << message;
    }
  }

  EngineCrashWorld world_;
};

TEST_P(EngineFaults, EndTheStepWithAMessageAndLeaveTheStoreIntact) {
  Watchdog watchdog(std::chrono::seconds(500), "a step on failing drives");
  // A move's refusal names file, offset and length; a flush has no more than its file.
  const std::regex of_move("(read|write) [0-9]+ B at [0-9]+ of /drive[0-9]/(rank0.tiles|rank0.gradients.scratch).*");
  std::set<std::string> struck;  // "read rank0.tiles"
  for (Kind kind : {Kind{"eio", Fault::eio, 0.004, "EIO"}, Kind{"enospc", Fault::enospc, 0.006, "ENOSPC"},
                    Kind{"torn", Fault::torn_write, 0.006, "EIO"}, Kind{"flush", Fault::failed_flush, 0.03, "EIO"}}) {
    uint64_t failed = 0;
    for (uint64_t seed = 1; seed <= seeds(); ++seed) {
      SCOPED_TRACE(testing::Message() << kind.name << ", seed " << seed);
      aio::FaultOptions faults;
      faults.seed = seed;
      faults.delay_chance = 0.3;
      Status status = run(faults.with(kind.fault, kind.chance));
      if (HasFailure()) return;
      if (status.ok()) continue;
      ++failed;
      const std::string& message = status.message();
      ASSERT_NE(message.find(kind.error), std::string::npos) << message;
      std::smatch match;
      if (kind.fault == Fault::failed_flush) {
        ASSERT_NE(message.find("flush"), std::string::npos) << message;
        ASSERT_NE(message.find("rank0.tiles"), std::string::npos) << message;
      } else {
        ASSERT_TRUE(std::regex_search(message, match, of_move)) << message;
        struck.insert(match[1].str() + " " + match[2].str());
      }
    }
    EXPECT_GT(failed, seeds() / 4) << kind.name;
  }
  for (const char* phase : {"read rank0.tiles", "write rank0.tiles", "write rank0.gradients.scratch"}) {
    EXPECT_TRUE(struck.contains(phase)) << phase;
  }
}

TEST_P(EngineFaults, AreNotSeenWhenTheyCanBeHelped) {
  for (uint64_t seed = 1; seed <= seeds() / 4; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    aio::FaultOptions faults;
    faults.seed = seed;
    faults.delay_chance = 0.5;
    faults.with(Fault::short_move, 0.2).with(Fault::eintr, 0.1).with(Fault::eagain, 0.05);
    Status status = run(faults);
    ASSERT_TRUE(status.ok()) << status.message();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, EngineFaults,
                         testing::Values(EngineCrashSetting{.name = "EveryStep"},
                                         EngineCrashSetting{.name = "HalfInHostEverySecondStep",
                                                            .host_state_share = 0.5,
                                                            .durability = {Durability::Kind::every, 2}}),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace penstock::engine
