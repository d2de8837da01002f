// The engine on a real drive that really fails while a step runs: the step ends with file, offset, length and errno,
// and once the drive is mended the store goes on from its last durable step, bit for bit. Needs root.
#include <gtest/gtest.h>

#include <atomic>
#include <regex>

#include "tests/support/engine_world.h"
#include "tests/support/loop_drive.h"
#include "tests/support/watchdog.h"

namespace penstock::engine {
namespace {

class EngineOnDrive : public testing::Test {
 protected:
  // Of two drives the second fails.
  EngineOnDrive() : world_(43, 2, std::vector<uint64_t>(12, 40'000)) {
    std::filesystem::create_directory(healthy());
    world_.options.drives = direct_drives({healthy(), failing_.folder()});
    world_.options.request.workload.clipping.norm = world_.settings.clip = 5;
    world_.options.request.choices.window_tiles = 4;
    world_.options.request.choices.host_state_share = 0;
    world_.options.request.choices.weights = WeightTier::nvme;
    world_.options.request.choices.retained_host_share = 1;
    world_.options.on_durable = [this](uint64_t step) { promised_ = step; };
  }
  void SetUp() override {
    if (!failing_.ready()) GTEST_SKIP() << "needs root, loop devices and ext4";
  }

  std::string healthy() const { return scratch_ / "healthy"; }
  void spill_every_gradient() { world_.options.request.choices.retained_host_share = 0; }

  std::unique_ptr<Engine> open() {
    Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? std::move(*engine) : nullptr;
  }
  // Steps of both until one of the engine's fails.
  Status steps(Engine& engine, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      PENSTOCK_TRY(world_.step(engine, size_of(engine.steps_done() + 1)).status());
      remember(engine.steps_done());
    }
    return engine.settle();
  }
  // What the step says, or the writing that goes on after it.
  Status step_and_settle(Engine& engine) {
    PENSTOCK_TRY(world_.step(engine, 0.001f).status());
    return engine.settle();
  }
  static float size_of(uint64_t step) { return step % 3 == 2 ? 0.05f : 0.001f; }  // every third is struck
  void remember(uint64_t step) {
    while (plain_.size() <= step) {
      if (!plain_.empty()) world_.plain_step(plain_.size(), size_of(plain_.size()));
      plain_.push_back(world_.plain());
    }
  }

  // `errors`: one of these names is in it. Then every verb has the same answer.
  void expect_ends_with(Engine& engine, const Status& status, const char* file, const char* errors) {
    ASSERT_FALSE(status.ok());
    const std::regex words(std::string("(tile [0-9]+ \\(.*\\): read|write) [0-9]+ B at [0-9]+ of ") +
                           failing_.folder() + "/" + file + ": (" + errors + ") .*");
    EXPECT_TRUE(std::regex_match(status.message(), words)) << status.message();
    EXPECT_TRUE(status.code() == Code::kEnvironment || status.code() == Code::kDoesNotFit);
    EXPECT_FALSE(status.remedy().empty());
    EXPECT_EQ(engine.begin({.groups = world_.groups}).message(), status.message());
  }
  void expect_goes_on() {
    const uint64_t promised = promised_;
    std::unique_ptr<Engine> engine = open();
    ASSERT_NE(engine, nullptr);
    const uint64_t step = engine->steps_done();
    ASSERT_GE(step, promised);
    remember(step);
    EXPECT_EQ(world_.words_different(*engine, plain_[step]), 0u) << "step " << step;
    Status status = steps(*engine, 2);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(world_.words_different(*engine, plain_[step + 2]), 0u) << "two steps on";
  }

  Watchdog watchdog_{std::chrono::seconds(200), "a step on a failing drive"};
  aio::ScratchFolder scratch_;
  aio::LoopDrive failing_;
  EngineWorld world_;
  std::vector<PlainModel> plain_;  // by step
  std::atomic<uint64_t> promised_ = 0;
};

// The slots that no step has written yet were promised, but have no room below.
TEST_F(EngineOnDrive, SurvivesRunningOutOfSpaceInAStep) {
  ASSERT_TRUE(world_.create().ok());
  ASSERT_TRUE(failing_.fill_backing());
  std::unique_ptr<Engine> engine = open();
  ASSERT_NE(engine, nullptr);
  expect_ends_with(*engine, steps(*engine, 3), "rank0.tiles", "ENOSPC|EIO");
  engine.reset();
  ASSERT_TRUE(failing_.free_backing());
  expect_goes_on();
}

TEST_F(EngineOnDrive, SurvivesRunningOutOfSpaceForGradients) {
  ASSERT_TRUE(world_.create().ok());
  ASSERT_TRUE(steps(*open(), 2).ok());  // has written every slot
  spill_every_gradient();
  std::unique_ptr<Engine> engine = open();
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(failing_.fill_backing());
  expect_ends_with(*engine, steps(*engine, 3), "rank0.gradients.scratch", "ENOSPC|EIO");
  engine.reset();
  ASSERT_TRUE(failing_.free_backing());
  expect_goes_on();
}

TEST_F(EngineOnDrive, SurvivesADriveThatCannotReadInAStep) {
  ASSERT_TRUE(world_.create().ok());
  std::unique_ptr<Engine> engine = open();
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(steps(*engine, 3).ok());
  ASSERT_TRUE(failing_.lose_backing());
  expect_ends_with(*engine, step_and_settle(*engine), "rank0.tiles", "EIO");
  engine.reset();
  ASSERT_TRUE(failing_.return_backing());
  expect_goes_on();
}

TEST_F(EngineOnDrive, SurvivesADriveThatGoesAwayBetweenTwoGradients) {
  ASSERT_TRUE(world_.create().ok());
  std::unique_ptr<Engine> engine = open();
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(steps(*engine, 3).ok());
  const std::vector<uint16_t> gradient(40'000, 0x3c00);
  ASSERT_TRUE(engine->begin({.groups = world_.groups}).ok());
  Status status;
  bool lost = false;
  for (uint32_t unit = 12; unit-- > 0 && status.ok();) {
    if (unit == 7) lost = failing_.lose_backing();
    status = engine->gradient(unit, 0, Dtype::bf16, std::as_bytes(std::span(gradient)));
  }
  ASSERT_TRUE(lost);
  if (status.ok()) status = engine->step().status();
  if (status.ok()) status = engine->settle();
  expect_ends_with(*engine, status, "rank0.tiles", "ENOSPC|EIO");
  engine.reset();
  ASSERT_TRUE(failing_.return_backing());
  expect_goes_on();
}

// What a creation without room has made it removes, on both drives.
TEST_F(EngineOnDrive, LeavesNothingOfAStoreThatHadNoRoom) {
  ASSERT_TRUE(failing_.fill_backing());
  Status created = world_.create();
  EXPECT_FALSE(created.ok());
  EXPECT_NE(created.message().find(failing_.folder() + "/new.rank0.tiles"), std::string::npos) << created.message();
  for (const char* file : {"/rank0.tiles", "/new.rank0.tiles"}) {
    EXPECT_FALSE(std::filesystem::exists(healthy() + file)) << file;
    EXPECT_FALSE(std::filesystem::exists(failing_.folder() + file)) << file;
  }
  ASSERT_TRUE(failing_.free_backing());
  created = world_.create();
  ASSERT_TRUE(created.ok()) << created.message();
  expect_goes_on();
}

TEST_F(EngineOnDrive, IsRefusedWhatTheDriveHasNoRoomFor) {
  ASSERT_TRUE(world_.create().ok());
  ASSERT_TRUE(steps(*open(), 1).ok());
  // Taken by another file, so that there is no room for gradients either.
  std::system(("fallocate -l 1G " + failing_.folder() + "/other 2> /dev/null; dd if=/dev/zero of=" + failing_.folder() +
               "/filler bs=1M oflag=direct 2> /dev/null")
                  .c_str());
  spill_every_gradient();
  Result<std::unique_ptr<Engine>> refused = Engine::open(world_.options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kDoesNotFit) << refused.status().message();
  EXPECT_NE(refused.status().message().find("rank0.gradients.scratch"), std::string::npos)
      << refused.status().message();
  std::filesystem::remove(failing_.folder() + "/filler");
  std::filesystem::remove(failing_.folder() + "/other");
  expect_goes_on();
}

TEST(EngineInFolder, DoesNotCallAStepDurableInAFileThatWasRemoved) {
  aio::ScratchFolder scratch;
  EngineWorld world(3);
  world.options.drives = direct_drives({scratch.path()});
  uint64_t durable = 0;
  world.options.on_durable = [&](uint64_t step) { durable = step; };
  ASSERT_TRUE(world.create().ok());
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  ASSERT_TRUE(world.step(**engine, 0.01f).ok() && (*engine)->settle().ok());
  ASSERT_TRUE(std::filesystem::remove(scratch / "rank0.tiles"));
  ASSERT_TRUE(world.step(**engine, 0.01f).ok());
  const Status settled = (*engine)->settle();
  EXPECT_NE(settled.message().find("rank0.tiles: was removed"), std::string::npos) << settled.message();
  EXPECT_EQ((*engine)->begin({.groups = world.groups}).message(), settled.message());
  EXPECT_EQ(durable, 1u);
}

}  // namespace
}  // namespace penstock::engine
