// A store on a real drive that really fails: a loop device whose backing has no room, or is not there. Needs root.
#include <gtest/gtest.h>

#include "aio/direct_folder.h"
#include "aio/make_io_engine.h"
#include "tests/aio/test_files.h"
#include "tests/support/loop_drive.h"
#include "tests/support/store_world.h"

namespace penstock::aio {
namespace {

class StoreOnDrive : public testing::Test {
 protected:
  void SetUp() override {
    if (!drive_.ready()) GTEST_SKIP() << "needs root, loop devices and ext4";
    Buffer memory = Buffer::on_heap(4 * kChunkBytes);
    CreateOptions options;
    options.memory = memory.bytes();
    options.payload = TrainingNumbers{}.payload();
    made_ = make_io_engine().value();
    Status created = TileStore::create(*made_.engine, folders(), shape_, options, initial_fill);
    ASSERT_TRUE(created.ok()) << created.message();
  }

  std::vector<std::shared_ptr<DriveFolder>> folders() const { return direct_folders({drive_.folder()}); }

  // Steps until one fails; its message.
  std::string train_until_failure(uint64_t steps_max) {
    Result<std::unique_ptr<TileStore>> store = TileStore::open(*made_.engine, folders(), {});
    if (!store.ok()) return store.status().message();
    StoreTrainer trainer(*made_.engine, **store);
    Status status;
    for (uint64_t i = 0; i < steps_max && status.ok(); ++i) status = trainer.step();
    if (status.ok()) status = trainer.settle();
    acknowledged_ = trainer.acknowledged();
    return status.message();
  }

  void expect_intact() {
    Result<std::unique_ptr<TileStore>> store = TileStore::open(*made_.engine, folders(), {});
    ASSERT_TRUE(store.ok()) << store.status().message();
    ASSERT_GE((*store)->payload().step, acknowledged_);
    StoreTrainer trainer(*made_.engine, **store);
    EXPECT_EQ(difference(trainer, shape_, (*store)->payload().step), "");
  }

  LoopDrive drive_;
  const StoreShape shape_ = small_shape(12, 40000, kBlockElements);
  MadeIoEngine made_;
  uint64_t acknowledged_ = 0;
};

// The space was promised to the store, but the drive below cannot keep it.
TEST_F(StoreOnDrive, SurvivesADriveThatRunsOutOfSpaceInAStep) {
  ASSERT_TRUE(drive_.fill_backing());
  std::string message = train_until_failure(3);
  EXPECT_TRUE(message.find("ENOSPC") != std::string::npos || message.find("EIO") != std::string::npos) << message;
  EXPECT_NE(message.find("rank0.tiles"), std::string::npos) << message;
  ASSERT_TRUE(drive_.free_backing());
  expect_intact();
  EXPECT_EQ(train_until_failure(3), "");
  expect_intact();
}

TEST_F(StoreOnDrive, SurvivesADriveThatIsGoneForAWhile) {
  ASSERT_EQ(train_until_failure(2), "");
  {
    Result<std::unique_ptr<TileStore>> store = TileStore::open(*made_.engine, folders(), {});
    ASSERT_TRUE(store.ok());
    StoreTrainer trainer(*made_.engine, **store);
    ASSERT_TRUE(drive_.lose_backing());
    std::string message = trainer.step().message();
    EXPECT_NE(message.find("EIO"), std::string::npos) << message;
    EXPECT_NE(message.find("rank0.tiles"), std::string::npos) << message;
  }
  ASSERT_TRUE(drive_.return_backing());
  expect_intact();
  EXPECT_EQ(train_until_failure(2), "");
  expect_intact();
}

TEST_F(StoreOnDrive, IsRefusedWithoutSpaceAndLeavesNothing) {
  StoreShape large = small_shape(12, 2000000, 16 * kBlockElements);
  Buffer memory = Buffer::on_heap(4 * kChunkBytes);
  CreateOptions options;
  options.memory = memory.bytes();
  ASSERT_TRUE(drive_.ready());
  std::filesystem::create_directory(drive_.folder() + "/other");
  Status created =
      TileStore::create(*made_.engine, direct_folders({drive_.folder() + "/other"}), large, options, initial_fill);
  EXPECT_EQ(created.code(), Code::kDoesNotFit);
  EXPECT_NE(created.message().find("the store needs 554"), std::string::npos) << created.message();
  EXPECT_TRUE(std::filesystem::is_empty(drive_.folder() + "/other"));
}

// What is still open of it takes steps, which would be gone with the process.
TEST(StoreOnTwoDrives, EndsWhereAFileOfEitherIsRemoved) {
  const StoreShape shape = small_shape(3, 40000, kBlockElements);
  for (const int gone : {0, 1}) {
    const ScratchFolder first(std::filesystem::current_path()), second(std::filesystem::current_path());
    const auto folders = direct_folders({first.path(), second.path()});
    const MadeIoEngine made = make_io_engine().value();
    Buffer memory = Buffer::on_heap(4 * kChunkBytes);
    CreateOptions options;
    options.memory = memory.bytes();
    options.payload = TrainingNumbers{}.payload();
    const Status created = TileStore::create(*made.engine, folders, shape, options, initial_fill);
    ASSERT_TRUE(created.ok()) << created.message();
    Result<std::unique_ptr<TileStore>> store = TileStore::open(*made.engine, folders, {});
    ASSERT_TRUE(store.ok()) << store.status().message();
    StoreTrainer trainer(*made.engine, **store);
    ASSERT_TRUE(trainer.step().ok());
    ASSERT_TRUE(trainer.settle().ok());
    const std::string file = (gone == 0 ? first : second) / store_file_name(0);
    ASSERT_TRUE(std::filesystem::remove(file));
    Status failed;
    for (int step = 0; step < 3 && failed.ok(); ++step) failed = trainer.step();
    if (failed.ok()) failed = trainer.settle();
    EXPECT_EQ(failed.message(), "commit: " + file + ": was removed while the store was in use");
  }
}

}  // namespace
}  // namespace penstock::aio
