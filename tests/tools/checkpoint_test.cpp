#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>

#include "aio/direct_folder.h"
#include "aio/make_io_engine.h"
#include "tests/aio/test_files.h"
#include "tests/support/store_shapes.h"
#include "tests/support/store_trainer.h"
#include "tests/support/store_world.h"
#include "tools/penstock/checkpoint_common.h"
#include "tools/penstock/command.h"

namespace penstock::tools {
namespace {

struct Ran {
  int code;
  std::string out, err;
};

Ran run(std::vector<std::string> arguments) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = run_command(all_verbs(), arguments);
  return {code, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

// A store on two folders after two steps.
class Checkpoint : public testing::Test {
 protected:
  Checkpoint() : shape_(small_shape(3, 3000, kBlockElements)) {
    for (const char* drive : {"a", "b"}) {
      folders_.push_back(scratch_ / drive);
      std::filesystem::create_directory(folders_.back());
    }
    aio::MadeIoEngine made = aio::make_io_engine().value();
    Buffer memory = Buffer::on_heap(2 * aio::kChunkBytes);
    aio::CreateOptions options;
    options.memory = memory.bytes();
    options.payload = aio::TrainingNumbers{}.payload();
    Status created =
        aio::TileStore::create(*made.engine, aio::direct_folders(folders_), shape_, options, aio::initial_fill);
    CHECK(created.ok(), created.message());
    auto store = aio::TileStore::open(*made.engine, aio::direct_folders(folders_), {}).value();
    aio::StoreTrainer trainer(*made.engine, *store);
    CHECK(trainer.step().ok() && trainer.step().ok() && trainer.settle().ok());
    weight_ = store->begin_read(1)->extents.front();
    weight_file_ = weight_.file->path();
  }

  std::string joined() const { return folders_[1] + "," + folders_[0]; }

  void flip_a_bit(uint64_t offset_bytes) const {
    std::fstream file(weight_file_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset_bytes));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(offset_bytes));
    file.put(static_cast<char>(byte ^ 4));
  }

  aio::ScratchFolder scratch_;
  std::vector<std::string> folders_;
  const StoreShape shape_;
  Extent weight_;  // of the second unit
  std::string weight_file_;
};

TEST_F(Checkpoint, LsTellsStepParametersAndBytes) {
  const Ran ran = run({"checkpoint", "ls", joined(), "--json"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  const Json json = Json::parse(ran.out);
  EXPECT_EQ(json["schema"], "penstock.checkpoint.ls/1");
  EXPECT_EQ(json["step"], 2);
  EXPECT_EQ(json["parameters"], 12000);
  EXPECT_TRUE(json["snapshots"].is_array());
  uint64_t bytes = 0;
  for (const std::string& folder : folders_) bytes += std::filesystem::file_size(folder + "/rank0.tiles");
  EXPECT_EQ(json["bytes"], bytes);
}

TEST_F(Checkpoint, ScrubFindsNothingInAGoodStore) {
  const Ran ran = run({"checkpoint", "scrub", folders_[0], folders_[1], "--json"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(Json::parse(ran.out)["blocks"], 3 * 4 + 1);
}

TEST_F(Checkpoint, ScrubNamesFileOffsetAndTensorOfAFlippedBit) {
  flip_a_bit(weight_.offset_bytes + 7);
  const Ran ran = run({"checkpoint", "scrub", joined(), "--json"});
  EXPECT_EQ(ran.code, 6);
  const Json json = Json::parse(ran.out);
  ASSERT_EQ(json["bad"].size(), 1u);
  EXPECT_EQ(json["bad"][0]["file"], weight_file_);
  EXPECT_EQ(json["bad"][0]["offset_bytes"], weight_.offset_bytes);
  EXPECT_EQ(json["bad"][0]["tensor"], "h.1.attention[0..1500), h.1.mlp[0..1500) weight");
}

// What scrub advises is done as it says.
TEST_F(Checkpoint, GoesBackToTheStepBeforeWhereTheNewestHasRotted) {
  flip_a_bit(weight_.offset_bytes + 7);
  const Ran scrubbed = run({"checkpoint", "scrub", folders_[0], folders_[1]});
  EXPECT_EQ(scrubbed.code, 6);
  const std::string advice =
      text("try: penstock checkpoint rollback ", folders_[0], " ", folders_[1], " --step 1, before anything else runs");
  ASSERT_NE(scrubbed.err.find(advice), std::string::npos) << scrubbed.err;
  EXPECT_EQ(run({"checkpoint", "rollback", folders_[0], folders_[1], "--step", "1"}).code, 0);
  EXPECT_EQ(run({"checkpoint", "scrub", joined()}).code, 0);
  aio::MadeIoEngine made = aio::make_io_engine().value();
  auto store = aio::TileStore::open(*made.engine, aio::direct_folders(folders_), {}).value();
  EXPECT_EQ(store->payload().step, 1u);
  aio::StoreTrainer trainer(*made.engine, *store);
  EXPECT_EQ(aio::difference(trainer, shape_, 1), "");
  EXPECT_TRUE(trainer.step().ok() && trainer.settle().ok());
  EXPECT_EQ(aio::difference(trainer, shape_, 2), "");
}

TEST_F(Checkpoint, DoesNotGoBackToAStepBeforeThatHasRottedToo) {
  // Where a step has written the tile, its other slot is the one of the step before.
  const auto other_slot = [&] {
    aio::MadeIoEngine made = aio::make_io_engine().value();
    auto store = aio::TileStore::open(*made.engine, aio::direct_folders(folders_), {}).value();
    aio::StoreTrainer trainer(*made.engine, *store);
    CHECK(trainer.step().ok() && trainer.settle().ok());
    return store->begin_read(1)->extents.front().offset_bytes;
  }();
  flip_a_bit(other_slot + 7);
  flip_a_bit(weight_.offset_bytes + 7);
  const Ran scrubbed = run({"checkpoint", "scrub", joined()});
  EXPECT_EQ(scrubbed.code, 6);
  EXPECT_EQ(scrubbed.err.find("rollback"), std::string::npos) << scrubbed.err;
  const Ran refused = run({"checkpoint", "rollback", joined(), "--step", "2"});
  EXPECT_NE(refused.code, 0);
  EXPECT_NE(refused.err.find("step 2"), std::string::npos) << refused.err;
}

TEST_F(Checkpoint, LsTellsTheSizesOfTheStateBesideTheTiles) {
  const Json json = Json::parse(run({"checkpoint", "ls", joined(), "--json"}).out);
  const RootPayload payload = aio::TrainingNumbers{}.payload();
  EXPECT_EQ(json["engine_state_bytes"], payload.engine_state.size());
  EXPECT_EQ(json["trainer_state_bytes"], payload.trainer_state.size());
}

// A drive that refuses to read has lost nothing as far as anybody knows.
TEST(CheckpointScrub, TellsWhatCouldNotBeReadFromWhatIsCorrupt) {
  const aio::BadBlock unread{"/a/rank0.tiles", 4096, 0, "wte weight", errno_status("read 4096 B at 4096 of x", EIO)};
  const aio::BadBlock corrupt{"/a/rank0.tiles", 8192, 0, "wte momentum", Status()};
  const Answer refused = answer_to_scrub({.blocks = 7, .bad = {unread}}, {});
  EXPECT_EQ(refused.verdict.code(), Code::kEnvironment);
  EXPECT_EQ(refused.verdict.message().find("scrub: 1 of 7 blocks could not be read, the first: read 4096 B at 4096"),
            0u)
      << refused.verdict.message();
  EXPECT_EQ(refused.json["unread"], 1);
  EXPECT_EQ(refused.json["bad"][0]["what"], "unread");
  EXPECT_NE(refused.json["bad"][0]["error"].get<std::string>().find("EIO"), std::string::npos);
  const Answer both = answer_to_scrub({.blocks = 7, .bad = {unread, corrupt}}, {});
  EXPECT_EQ(both.verdict.code(), Code::kComparison);
  EXPECT_EQ(both.verdict.message(), "scrub: 1 of 7 blocks do not match their checksums, and 1 could not be read");
  EXPECT_EQ(both.json["bad"][1]["what"], "corrupt");
  EXPECT_FALSE(both.json["bad"][1].contains("error"));
}

// That a step was lost is said, and is no damage that the next run would have to mend.
TEST(CheckpointScrub, CountsBadCopiesAndNotNotes) {
  EXPECT_TRUE(answer_to_scrub({.blocks = 7}, {.notes = {"step 4 is lost"}}).verdict.ok());
  const Answer bad = answer_to_scrub({.blocks = 7}, {.notes = {"a root"}, .bad_copies = 1});
  EXPECT_EQ(bad.verdict.code(), Code::kComparison);
  EXPECT_NE(bad.verdict.message().find("1 copy of"), std::string::npos);
}

TEST_F(Checkpoint, BadInputGetsItsExitCodeAndAWayOut) {
  for (const auto& [paths, code] : std::vector<std::pair<std::string, int>>{
           {scratch_ / "nowhere", 2}, {folders_[0] + "/rank0.tiles", 2}, {folders_[0], 2}, {scratch_.path(), 2}}) {
    const Ran ran = run({"checkpoint", "ls", paths});
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_NE(ran.err.find("penstock: "), std::string::npos);
    EXPECT_NE(ran.err.find("try: "), std::string::npos) << ran.err;
  }
}

// One folder for each rank: who forgets one does not see half of a model for all of it.
TEST(CheckpointOfRanks, SaysWhereAPartOfThemIsHere) {
  aio::ScratchFolder scratch;
  std::vector<std::string> folders;
  aio::MadeIoEngine made = aio::make_io_engine().value();
  Buffer memory = Buffer::on_heap(2 * aio::kChunkBytes);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    folders.push_back(scratch / text("rank", rank));
    std::filesystem::create_directory(folders.back());
    StoreShape shape = small_shape(1, 3000, kBlockElements);
    shape.ranks = 2;
    shape.rank = rank;
    aio::CreateOptions options;
    options.memory = memory.bytes();
    options.payload = aio::TrainingNumbers{}.payload();
    const auto drives = aio::direct_folders({folders.back()});
    ASSERT_TRUE(aio::TileStore::create(*made.engine, drives, shape, options, aio::initial_fill).ok());
  }
  const std::string said = "1 of 2 ranks' stores are here";
  for (const char* verb : {"ls", "scrub"}) {
    EXPECT_NE(run({"checkpoint", verb, folders[0]}).out.find(said), std::string::npos) << verb;
    EXPECT_EQ(run({"checkpoint", verb, folders[0], folders[1]}).out.find(said), std::string::npos) << verb;
  }
  const Ran second = run({"checkpoint", "ls", folders[1]});
  EXPECT_EQ(second.code, 2);
  EXPECT_NE(second.err.find(": has the store of rank 1, and rank 0's is nowhere here"), std::string::npos)
      << second.err;
  EXPECT_NE(second.err.find("try: the folders of all ranks' drives"), std::string::npos) << second.err;
}

TEST_F(Checkpoint, ARunThatHasTheStoreOpenIsNotDisturbed) {
  aio::MadeIoEngine made = aio::make_io_engine().value();
  auto store = aio::TileStore::open(*made.engine, aio::direct_folders(folders_), {}).value();
  const Ran ran = run({"checkpoint", "ls", joined()});
  EXPECT_EQ(ran.code, 4) << ran.err;
  EXPECT_NE(ran.err.find("locked"), std::string::npos) << ran.err;
}

}  // namespace
}  // namespace penstock::tools
