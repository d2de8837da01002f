#include <gtest/gtest.h>

#include <fstream>

#include "aio/direct_folder.h"
#include "aio/make_engine.h"
#include "tests/aio/test_files.h"
#include "tests/support/store_shapes.h"
#include "tests/support/store_trainer.h"
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
    aio::MadeEngine made = aio::make_engine().value();
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
  {
    std::fstream file(weight_file_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(weight_.offset_bytes + 7));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(weight_.offset_bytes + 7));
    file.put(static_cast<char>(byte ^ 4));
  }
  const Ran ran = run({"checkpoint", "scrub", joined(), "--json"});
  EXPECT_EQ(ran.code, 6);
  const Json json = Json::parse(ran.out);
  ASSERT_EQ(json["bad"].size(), 1u);
  EXPECT_EQ(json["bad"][0]["file"], weight_file_);
  EXPECT_EQ(json["bad"][0]["offset_bytes"], weight_.offset_bytes);
  EXPECT_EQ(json["bad"][0]["tensor"], "h.1.attention[0..1500), h.1.mlp[0..1500) weight");
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

TEST_F(Checkpoint, ARunThatHasTheStoreOpenIsNotDisturbed) {
  aio::MadeEngine made = aio::make_engine().value();
  auto store = aio::TileStore::open(*made.engine, aio::direct_folders(folders_), {}).value();
  const Ran ran = run({"checkpoint", "ls", joined()});
  EXPECT_EQ(ran.code, 4) << ran.err;
  EXPECT_NE(ran.err.find("locked"), std::string::npos) << ran.err;
}

}  // namespace
}  // namespace penstock::tools
