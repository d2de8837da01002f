#include "aio/direct_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "aio/drive_info.h"
#include "aio/make_io_engine.h"
#include "aio/write_once.h"
#include "tests/aio/test_files.h"

namespace penstock::aio {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTestDrives = "/run/penstock-test-drives";

const FileOptions kAnywhere{.lock_wait = std::chrono::milliseconds(50), .in_memory = InMemory::allow};

void expect_refused(const Result<std::unique_ptr<DirectFile>>& file, Code code, const std::string& words) {
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), code) << file.status().message();
  EXPECT_NE(file.status().message().find(words), std::string::npos) << file.status().message();
  EXPECT_FALSE(file.status().remedy().empty()) << file.status().message();
}

TEST(DirectFile, IsMadeWholePrivateAndLocked) {
  ScratchFolder folder;
  auto file = DirectFile::create(folder / "a", kMiB, Existing::refuse, kAnywhere);
  ASSERT_TRUE(file.ok()) << file.status().message();
  struct stat found;
  ASSERT_EQ(stat((folder / "a").c_str(), &found), 0);
  EXPECT_EQ(found.st_size, static_cast<off_t>(kMiB));
  EXPECT_GE(found.st_blocks * 512, static_cast<off_t>(kMiB));
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  EXPECT_EQ(kAlignmentBytes % (*file)->alignment_bytes(), 0u);
  expect_refused(DirectFile::open(folder / "a", Access::read_write, kAnywhere), Code::kEnvironment, "locked");
  expect_refused(DirectFile::open(folder / "a", Access::read_only, kAnywhere), Code::kEnvironment, "locked");
}

TEST(DirectFile, VanishesUnlessKept) {
  ScratchFolder folder;
  {
    auto file = DirectFile::create(folder / "a", kMiB, Existing::refuse, kAnywhere);
    ASSERT_TRUE(file.ok());
  }
  EXPECT_FALSE(fs::exists(folder / "a"));
  DirectFile::create(folder / "b", kMiB, Existing::refuse, kAnywhere).value()->keep();
  EXPECT_TRUE(fs::exists(folder / "b"));
}

TEST(DirectFile, ReadersShareAndAWriterWaitsForThem) {
  ScratchFolder folder;
  DirectFile::create(folder / "a", kMiB, Existing::refuse, kAnywhere).value()->keep();
  auto reader = DirectFile::open(folder / "a", Access::read_only, kAnywhere);
  auto another = DirectFile::open(folder / "a", Access::read_only, kAnywhere);
  ASSERT_TRUE(reader.ok() && another.ok());
  expect_refused(DirectFile::open(folder / "a", Access::read_write, kAnywhere), Code::kEnvironment, "locked");
  // One that goes away in time is waited for.
  another.value().reset();
  std::thread leaving([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    reader.value().reset();
  });
  const FileOptions patient{.lock_wait = std::chrono::seconds(10), .in_memory = InMemory::allow};
  EXPECT_TRUE(DirectFile::open(folder / "a", Access::read_write, patient).ok());
  leaving.join();
}

// It would be written, and be gone with its last owner.
TEST(DirectFile, RefusesAFileThatIsRemovedWhileItsLockIsWaitedFor) {
  ScratchFolder folder;
  auto owner = DirectFile::create(folder / "a", kMiB, Existing::refuse, kAnywhere);
  ASSERT_TRUE(owner.ok());
  std::thread leaving([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    fs::remove(folder / "a");
    owner.value()->keep();
    owner.value().reset();
  });
  const FileOptions patient{.lock_wait = std::chrono::seconds(10), .in_memory = InMemory::allow};
  expect_refused(DirectFile::open(folder / "a", Access::read_write, patient), Code::kEnvironment, "removed");
  leaving.join();
}

TEST(DirectFile, RefusesWhatIsInTheWay) {
  ScratchFolder folder;
  std::ofstream(folder / "file") << "somebody's";
  fs::create_directory(folder / "folder");
  expect_refused(DirectFile::create(folder / "file", kMiB, Existing::refuse, kAnywhere), Code::kUsage, "EEXIST");
  expect_refused(DirectFile::create(folder / "folder", kMiB, Existing::replace, kAnywhere), Code::kUsage, "a folder");
  expect_refused(DirectFile::create(folder / "file/below", kMiB, Existing::refuse, kAnywhere), Code::kUsage, "ENOTDIR");
  expect_refused(DirectFile::create(folder / "missing/below", kMiB, Existing::refuse, kAnywhere), Code::kUsage,
                 "ENOENT");
  expect_refused(DirectFile::open(folder / "missing", Access::read_write, kAnywhere), Code::kUsage, "ENOENT");
  expect_refused(DirectFile::open(folder / "folder", Access::read_write, kAnywhere), Code::kUsage, "a folder");
  expect_refused(DirectFile::open(folder / "file", Access::read_write, kAnywhere), Code::kCorrupt,
                 "invalid size: 10 B");
  expect_refused(DirectFile::open("/dev/null", Access::read_write, kAnywhere), Code::kUsage, "not a regular file");
  EXPECT_EQ(fs::file_size(folder / "file"), 10u) << "what was there is untouched";
}

TEST(DirectFile, OpensAFileThatWasCopiedHereAMomentAgo) {
  ScratchFolder folder;
  std::ofstream(folder / "a") << std::string(4 * kMiB, 'x');
  auto file = DirectFile::open(folder / "a", Access::read_write, kAnywhere);
  EXPECT_TRUE(file.ok()) << file.status().message();
}

TEST(DirectFile, RefusesNonsenseSizesAndWhatDoesNotFitAndLeavesNothing) {
  ScratchFolder folder;
  for (uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{5000}, ~uint64_t{0}, uint64_t{1} << 63}) {
    expect_refused(DirectFile::create(folder / "a", bytes, Existing::refuse, kAnywhere), Code::kUsage,
                   "invalid size: ");
  }
  const uint64_t huge = uint64_t{1} << 50;
  auto refused = DirectFile::create(folder / "a", huge, Existing::refuse, kAnywhere);
  expect_refused(refused, Code::kDoesNotFit, text(huge, " B"));
  EXPECT_NE(refused.status().message().find("available"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder.path()));
  // One that is to be replaced stays when the new one does not fit.
  std::ofstream(folder / "old") << "somebody's";
  expect_refused(DirectFile::create(folder / "old", huge, Existing::replace, kAnywhere), Code::kDoesNotFit, "needed");
  EXPECT_EQ(fs::file_size(folder / "old"), 10u);
}

TEST(DirectFile, RefusesABlockDevice) {
  for (const auto& entry : fs::directory_iterator("/dev")) {
    std::error_code ignored;
    if (!fs::is_block_file(entry.path(), ignored)) continue;
    expect_refused(DirectFile::create(entry.path(), kMiB, Existing::replace), Code::kUsage, "a block device");
    expect_refused(DirectFile::open(entry.path()), Code::kUsage, "a block device");
    return;
  }
  GTEST_SKIP() << "no block device in /dev";
}

TEST(DirectFile, RefusesMemoryForAStore) {
  if (describe_drive("/dev/shm").value().file_system != "tmpfs") GTEST_SKIP() << "/dev/shm is no tmpfs";
  const std::string path = text("/dev/shm/penstock-test-file-", getpid());
  expect_refused(DirectFile::create(path, kMiB), Code::kEnvironment, "tmpfs");
  EXPECT_FALSE(fs::exists(path));
}

TEST(DirectFile, RefusesAFolderWithoutPermission) {
  if (geteuid() == 0) GTEST_SKIP() << "root may do everything";
  ScratchFolder folder;
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
  expect_refused(DirectFile::create(folder / "a", kMiB, Existing::refuse, kAnywhere), Code::kEnvironment, "EACCES");
  fs::permissions(folder.path(), fs::perms::owner_all);
}

TEST(DirectFile, WriteOnceFillsEveryBlockThroughABoundedPool) {
  ScratchFolder folder;
  auto file = DirectFile::create(folder / "a", 9 * kMiB + 4096, Existing::refuse, kAnywhere);
  ASSERT_TRUE(file.ok()) << file.status().message();
  auto made = make_io_engine();
  ASSERT_TRUE(made.ok());
  OwnMemory memory(2 * kMiB);
  BufferPool pool(Tier::host, memory.bytes(), 512 * kKiB);
  const Fill fill = [](uint64_t offset_bytes, std::span<std::byte> block) { fill_telling(block, 4, offset_bytes); };
  ASSERT_TRUE(write_once(**file, *made->engine, pool, fill).ok());
  EXPECT_EQ(pool.pieces_free(), pool.pieces());
  OwnMemory back(9 * kMiB + 4096);
  ASSERT_TRUE(made->engine->read(**file, 0, back.lease()).wait().ok());
  EXPECT_EQ(first_wrong(back.bytes(), 4, 0), -1);
}

TEST(DirectFile, AFileCutShortIsNoticed) {
  ScratchFolder folder;
  auto file = DirectFile::create(folder / "a", kMiB, Existing::refuse, kAnywhere);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(truncate((folder / "a").c_str(), 512 * 1024), 0);
  for (IoEngineChoice choice : {IoEngineChoice::io_uring, IoEngineChoice::libaio, IoEngineChoice::threads}) {
    auto made = make_io_engine(choice);
    if (!made.ok()) continue;
    OwnMemory memory(kMiB);
    auto end = made->engine->read(**file, 0, memory.lease()).wait();
    ASSERT_FALSE(end.ok());
    EXPECT_NE(end.status().message().find("524288 of " + (folder / "a") + ": unexpected end of file"),
              std::string::npos)
        << end.status().message();
  }
}

// The drives of tools/test-drives.
class TestDrive : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!fs::exists(path())) GTEST_SKIP() << path() << " is not there; as root: tools/test-drives up";
  }
  std::string path() const { return std::string(kTestDrives) + "/" + GetParam(); }
  std::string file() const { return text(path(), "/direct_file_test-", getpid()); }
};

class FileSystem : public TestDrive {};

TEST_P(FileSystem, MovesBytesPastThePageCache) {
  auto file = DirectFile::create(this->file(), 4 * kMiB, Existing::replace);
  ASSERT_TRUE(file.ok()) << file.status().message();
  auto made = make_io_engine();
  ASSERT_TRUE(made.ok());
  OwnMemory memory(4 * kMiB);
  fill_telling(memory.bytes(), 1, 0);
  ASSERT_TRUE(made->engine->write(**file, 0, memory.lease()).wait().ok());
  ASSERT_TRUE(made->engine->flush(**file).wait().ok());
  std::memset(memory.bytes().data(), 0, memory.bytes().size());
  ASSERT_TRUE(made->engine->read(**file, 0, memory.lease()).wait().ok());
  EXPECT_EQ(first_wrong(memory.bytes(), 1, 0), -1);
  const DriveInfo info = describe_drive(path()).value();
  EXPECT_EQ(info.id, (*file)->drive());
  EXPECT_EQ(info.device.substr(0, 4), "loop");
  EXPECT_NE(info.id, describe_drive("/").value().id);
}

INSTANTIATE_TEST_SUITE_P(Drives, FileSystem, ::testing::Values("fast", "xfs", "btrfs"),
                         [](const auto& drive) { return std::string(drive.param); });

class Btrfs : public TestDrive {};

TEST_P(Btrfs, AFileThatItWouldBufferIsRefused) {
  std::ofstream(file()) << std::string(8192, 'x');
  expect_refused(DirectFile::open(file()), Code::kEnvironment, "buffers");
  EXPECT_TRUE(DirectFile::open(file(), Access::read_only).ok()) << "reading past the cache does work";
  fs::remove(file());
}

INSTANTIATE_TEST_SUITE_P(Drives, Btrfs, ::testing::Values("btrfs"), [](const auto&) { return "btrfs"; });

class SmallDrive : public TestDrive {};

TEST_P(SmallDrive, AFullDriveIsRefusedBeforeAnythingIsWritten) {
  const uint64_t free_bytes = describe_drive(path()).value().free_bytes;
  expect_refused(DirectFile::create(file(), round_up(free_bytes + 1, 4096)), Code::kDoesNotFit, text(free_bytes, " B"));
  EXPECT_FALSE(fs::exists(file()));
  EXPECT_EQ(describe_drive(path()).value().free_bytes, free_bytes);
}

INSTANTIATE_TEST_SUITE_P(Drives, SmallDrive, ::testing::Values("small"), [](const auto&) { return "small"; });

}  // namespace
}  // namespace penstock::aio
