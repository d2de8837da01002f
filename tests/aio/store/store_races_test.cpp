// A store that is made while somebody else makes or opens one in the same folders: neither is taken from its owner.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "aio/direct_folder.h"
#include "aio/make_io_engine.h"
#include "tests/aio/test_files.h"
#include "tests/support/store_shapes.h"
#include "tests/support/store_trainer.h"

namespace penstock::aio {
namespace {

// A maker waits: the kernel may let go of the lock of a file that a drive engine has just closed a moment later.
const FileOptions kPatient{.lock_wait = std::chrono::seconds(10), .in_memory = InMemory::allow};
const FileOptions kAtOnce{.lock_wait = std::chrono::milliseconds(0), .in_memory = InMemory::allow};

// A folder where somebody acts once a maker has looked at what is there.
class RacedFolder final : public DriveFolder {
 public:
  RacedFolder(const std::string& path, std::function<void()> act)
      : inner_(path, Access::read_write, kPatient), act_(std::move(act)) {}

  const std::string& path() const override { return inner_.path(); }
  bool has_file(const std::string& name) const override { return inner_.has_file(name); }
  Result<FreeSpace> free_space() const override {
    act_();
    return inner_.free_space();
  }
  Result<std::unique_ptr<File>> create_file(const std::string& name, uint64_t size_bytes) override {
    return inner_.create_file(name, size_bytes);
  }
  Result<std::unique_ptr<File>> open_file(const std::string& name) override { return inner_.open_file(name); }
  Status rename_file(const std::string& from, const std::string& to) override { return inner_.rename_file(from, to); }
  Status remove_file(const std::string& name) override { return inner_.remove_file(name); }

 private:
  DirectFolder inner_;
  const std::function<void()> act_;
};

class StoreRaces : public testing::Test {
 protected:
  // In two folders; `act` happens when the second has been looked at.
  Status create(
      CreateOptions::Existing existing, std::function<void()> act = [] {}) {
    std::vector<std::shared_ptr<DriveFolder>> folders;
    for (const char* drive : {"a", "b"}) {
      std::filesystem::create_directories(scratch_ / drive);
      const bool acts = *drive == 'b';
      folders.push_back(std::make_shared<RacedFolder>(
          scratch_ / drive, acts ? act : [] {}));
    }
    Buffer memory = Buffer::on_heap(4 * kChunkBytes);
    CreateOptions options;
    options.memory = memory.bytes();
    options.payload = TrainingNumbers{}.payload();
    options.existing = existing;
    return TileStore::create(*made_.engine, folders, small_shape(12, 4000, kBlockElements), options, initial_fill);
  }

  const ScratchFolder scratch_{std::filesystem::current_path()};
  MadeIoEngine made_ = make_io_engine().value();
};

TEST_F(StoreRaces, WhoComesSecondDoesNotRemoveWhatTheFirstHasMade) {
  for (const char* drive : {"a", "b"}) {
    const std::string file = scratch_ / drive + "/rank0.tiles";
    Status created = create(CreateOptions::Existing::refuse, [&] { std::ofstream(file) << "of the first"; });
    EXPECT_EQ(created.code(), Code::kUsage);
    EXPECT_NE(created.message().find("EEXIST"), std::string::npos) << created.message();
    ASSERT_TRUE(std::filesystem::exists(file));
    EXPECT_EQ(std::filesystem::file_size(file), 12u);
    std::filesystem::remove(file);
    EXPECT_TRUE(std::filesystem::is_empty(scratch_ / "a") && std::filesystem::is_empty(scratch_ / "b"));
  }
}

TEST_F(StoreRaces, WhatIsReplacedIsNobodysUntilItIsGone) {
  ASSERT_TRUE(create(CreateOptions::Existing::refuse).ok());
  Status opened;
  Status created = create(CreateOptions::Existing::replace, [&] {
    opened = DirectFile::open(scratch_ / "a/rank0.tiles", Access::read_write, kAtOnce).status();
  });
  EXPECT_TRUE(created.ok()) << created.message();
  EXPECT_NE(opened.message().find("locked by another run"), std::string::npos) << opened.message();
}

}  // namespace
}  // namespace penstock::aio
