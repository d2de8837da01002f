// Requests that fail in the middle of a step of the real engine: the step ends with a message that says what, where and
// how much, the store keeps the last committed step, and opening it again goes on from there. The same of drives that
// die in forward, in backward and in the tail of a whole step.
//
// FAULT_SEEDS sets how many random histories are run.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <regex>
#include <set>

#include "tests/support/engine_crash_world.h"
#include "tests/support/faulty_backend.h"
#include "tests/support/scripted_backend.h"
#include "tests/support/watchdog.h"

namespace penstock::engine {
namespace {

using aio::Fault;
using aio::Operation;

// Whole steps take longer, and have more requests.
uint64_t seeds(const EngineCrashSetting& setting) {
  const char* asked = std::getenv("FAULT_SEEDS");
  const uint64_t usual = setting.on_device ? 4 : setting.trains ? 8 : 24;
  return asked ? std::strtoull(asked, nullptr, 10) : usual;
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
  const std::regex of_move(
      "(read|write) [0-9]+ B at [0-9]+ of "
      "/drive[0-9]/(rank0.tiles|rank0.gradients.scratch|rank0.activations.scratch).*");
  std::set<std::string> struck;  // "read rank0.tiles"
  const uint64_t count = seeds(GetParam());
  for (Kind kind : {Kind{"eio", Fault::eio, 0.004, "EIO"}, Kind{"enospc", Fault::enospc, 0.01, "ENOSPC"},
                    Kind{"torn", Fault::torn_write, 0.01, "EIO"}, Kind{"flush", Fault::failed_flush, 0.1, "EIO"}}) {
    uint64_t failed = 0;
    for (uint64_t seed = 1; seed <= count; ++seed) {
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
    EXPECT_GT(failed, count / 8) << kind.name;
  }
  if (GetParam().trains) return;  // where those are struck, EngineOnADyingDrive says
  for (const char* phase : {"read rank0.tiles", "write rank0.tiles", "write rank0.gradients.scratch"}) {
    EXPECT_TRUE(struck.contains(phase)) << phase;
  }
}

TEST_P(EngineFaults, AreNotSeenWhenTheyCanBeHelped) {
  for (uint64_t seed = 1; seed <= seeds(GetParam()) / 4; ++seed) {
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
                                                            .durability = {Durability::Kind::every, 2}},
                                         EngineCrashSetting{.name = "WholeSteps", .trains = true},
                                         EngineCrashSetting{
                                             .name = "WholeStepsOnADevice", .trains = true, .on_device = true}),
                         [](const auto& each) { return each.param.name; });

// A drive dies: with a request of one kind, at one place of the first step that follows a committed one.
struct Death {
  const char* name;
  Moment moment;
  Operation operation;
  const char* file;
};

class EngineOnADyingDrive : public testing::TestWithParam<bool> {
 protected:
  EngineOnADyingDrive() : world_({.name = "WholeSteps", .trains = true, .on_device = GetParam()}) {}

  // A life of steps that the death ends.
  Status live(aio::RecordedDrives& drives, const Death& death) {
    now_ = Moment::forward;
    promised_ = 0;
    dead_.reset();
    world_.at = [this](Moment moment) { now_ = moment; };
    auto fate = [this, &death](const aio::Piece& piece) {
      const bool strikes = promised_ > 0 && now_ == death.moment && piece.operation == death.operation &&
                           piece.file->path().ends_with(death.file);
      if (!dead_ && strikes) dead_ = piece.file->drive();
      return piece.file->drive() == dead_ ? EIO : aio::ScriptedBackend::kPass;
    };
    return world_.run(
        drives, 6, /*seed=*/1,
        [&] { return std::make_unique<aio::ScriptedBackend>(std::make_unique<aio::MemoryBackend>(), fate); },
        [this](uint64_t step) { promised_ = step; });
  }

  EngineCrashWorld world_;
  std::atomic<Moment> now_ = Moment::forward;
  std::atomic<uint64_t> promised_ = 0;
  std::optional<uint32_t> dead_;  // drive; of the decision thread
};

TEST_P(EngineOnADyingDrive, EndsTheStepWithAMessageAndLeavesTheStoreIntact) {
  Watchdog watchdog(std::chrono::seconds(200), "a whole step on a dying drive");
  constexpr const char *kTiles = "rank0.tiles", *kGradients = "rank0.gradients.scratch",
                       *kActivations = "rank0.activations.scratch";
  for (const Death& death : {Death{"weights in forward", Moment::forward, Operation::read, kTiles},
                             Death{"activations in forward", Moment::forward, Operation::write, kActivations},
                             Death{"activations in backward", Moment::backward, Operation::read, kActivations},
                             Death{"weights and states in backward", Moment::backward, Operation::read, kTiles},
                             Death{"updated tiles in backward", Moment::backward, Operation::write, kTiles},
                             Death{"gradients in backward", Moment::backward, Operation::write, kGradients},
                             Death{"updated tiles in the tail", Moment::tail, Operation::write, kTiles},
                             Death{"the flush in the tail", Moment::tail, Operation::flush, kTiles}}) {
    SCOPED_TRACE(death.name);
    // Every verb has the same answer then.
    bool has_failed = false;
    world_.on_failed = [&](Engine& engine, const Status& status) {
      has_failed = true;
      EXPECT_EQ(engine.acquire({Direction::forward, 0, 0}).status().message(), status.message());
      EXPECT_EQ(engine.discard().message(), status.message());
      EXPECT_EQ(world_.begin(engine).message(), status.message());
      EXPECT_EQ(engine.settle().message(), status.message());
    };
    aio::RecordedDrives drives = world_.new_drives();
    const Status status = live(drives, death);
    ASSERT_TRUE(has_failed) << status.message();
    ASSERT_TRUE(dead_.has_value());
    EXPECT_EQ(status.code(), Code::kEnvironment);
    const std::string run = death.operation == Operation::flush ? "" : " [0-9]+ B at [0-9]+ of";
    const bool reads_tiles = death.operation == Operation::read && death.file == kTiles;
    const std::string said =
        text(reads_tiles ? "tile [0-9]+ \\(.*\\): " : "", name_of(death.operation), run, " /drive", *dead_, "/",
             death.file, ": EIO.*; step ", "[0-9]+ is committed(, and step [0-9]+ may be)?");
    EXPECT_TRUE(std::regex_match(status.message(), std::regex(said))) << status.message();
    world_.at = [](Moment) {};
    EXPECT_EQ(world_.check(drives, promised_), "");
  }
}

INSTANTIATE_TEST_SUITE_P(WholeSteps, EngineOnADyingDrive, testing::Bool(),
                         [](const auto& each) { return each.param ? "OnADevice" : "InPlace"; });

}  // namespace
}  // namespace penstock::engine
