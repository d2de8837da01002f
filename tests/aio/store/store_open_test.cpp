// What opening refuses, and that it then touches nothing.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "aio/direct_folder.h"
#include "aio/drive_info.h"
#include "aio/make_io_engine.h"
#include "aio/store/store_parts.h"
#include "tests/aio/test_files.h"
#include "tests/support/instrumented.h"
#include "tests/support/store_records.h"
#include "tests/support/store_world.h"
#include "tiering/store/root_record.h"
#include "tiering/store/store_header.h"

namespace penstock::aio {
namespace {

StoreShape twelve_tiles() { return small_shape(12, 3000, kBlockElements); }

// A store of three drives after a few steps, and its opening's refusal.
class StoreOpen : public testing::Test {
 protected:
  StoreOpen() : shape_(twelve_tiles()), world_(3) {
    CHECK(world_.create(shape_).ok());
    Result<std::unique_ptr<TileStore>> store = world_.open();
    StoreTrainer trainer(world_.engine(), **store);
    for (int i = 0; i < 3; ++i) CHECK(trainer.step().ok());
    CHECK(trainer.settle().ok());
  }

  // Opens, expects a refusal that says `words`, and that no byte has changed.
  void expect_refused(Code code, const std::string& words, OpenOptions options = {}) {
    std::vector<MemoryFile::Bytes> before = world_.image();
    Result<std::unique_ptr<TileStore>> store = world_.open(options);
    ASSERT_FALSE(store.ok()) << "expected: " << words;
    EXPECT_EQ(store.status().code(), code) << store.status().message();
    EXPECT_NE(store.status().message().find(words), std::string::npos) << store.status().message();
    EXPECT_TRUE(before == world_.image()) << "opening has written";
  }

  // Both copies of a drive's header, with a right checksum.
  void set_format(uint32_t drive, uint32_t format) {
    for (uint32_t copy = 0; copy < 2; ++copy) {
      std::byte* header = world_.bytes(drive).data() + StoreLayout::header_offset(copy);
      std::memcpy(header + 8, &format, 4);
      seal(std::span(header, kRecordBytes));
    }
  }

  StoreHeader header(uint32_t drive) {
    return *StoreHeader::decode(std::span(world_.bytes(drive)).first(kRecordBytes), "header");
  }
  void put_header(uint32_t drive, uint32_t copy, const StoreHeader& header) {
    const std::vector<std::byte> bytes = header.encode();
    std::memcpy(world_.bytes(drive).data() + StoreLayout::header_offset(copy), bytes.data(), bytes.size());
  }

  StoreShape shape_;
  StoreWorld world_;
};

TEST_F(StoreOpen, TakesTheFoldersInAnyOrder) {
  Result<std::unique_ptr<TileStore>> store = world_.open(std::vector<uint32_t>{2, 0, 1});
  ASSERT_TRUE(store.ok()) << store.status().message();
  StoreTrainer trainer(world_.engine(), **store);
  EXPECT_EQ(difference(trainer, shape_, 3), "");
}

TEST_F(StoreOpen, NamesADriveThatIsMissing) {
  Result<std::unique_ptr<TileStore>> store = world_.open(std::vector<uint32_t>{0, 2});
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().message(), "/drive0: a store of 3 drives, but 2 drives given: drive 1 is missing");
  CHECK(world_.folder(1).remove_file(StoreWorld::kFile).ok());
  expect_refused(Code::kUsage, "/drive1: no store: rank0.tiles is missing");
}

TEST_F(StoreOpen, NamesAnotherRanksStoreThatIsThereInstead) {
  CHECK(world_.folder(1).rename_file(StoreWorld::kFile, "rank3.tiles").ok());
  expect_refused(Code::kUsage, "/drive1: no store: rank0.tiles is missing, rank3.tiles is there");
}

// Every record is whole and has a right checksum, and they do not belong together.
TEST_F(StoreOpen, RefusesHeadersThatContradictOneAnother) {
  StoreHeader of_five = header(1);
  of_five.shares = {2000, 2000, 2000, 2000, 2000};
  of_five.drive = 4;  // where the others have but three places
  put_header(1, 1, of_five);
  expect_refused(Code::kCorrupt, "/drive1/rank0.tiles: its two headers contradict each other");
  put_header(1, 0, of_five);
  expect_refused(Code::kCorrupt, "/drive1/rank0.tiles: its header contradicts that of /drive0/rank0.tiles");
}

// As its description has it, laying the store out would take longer than anybody waits.
TEST_F(StoreOpen, RefusesADescriptionOfMoreThanTheFilesHold) {
  StoreShape vast = shape_;
  for (StoreShape::Tile& tile : vast.tiles) tile.elements = uint64_t{1} << 44;
  const std::vector<std::byte> bytes = vast.encode();
  for (uint32_t drive = 0; drive < 3; ++drive) {
    StoreHeader header = this->header(drive);
    header.shape_digest = vast.digest();
    for (uint32_t copy = 0; copy < 2; ++copy) put_header(drive, copy, header);
    std::memcpy(world_.bytes(drive).data() + StoreLayout::shape_offset(), bytes.data(), bytes.size());
  }
  expect_refused(Code::kCorrupt, "what is stored takes");
}

TEST_F(StoreOpen, NamesADriveThatWasGivenTwice) {
  world_.folder(2).put(StoreWorld::kFile, world_.bytes(1));
  expect_refused(Code::kUsage, "/drive2: drive 1 of the store, as is /drive1");
}

TEST_F(StoreOpen, NamesADriveOfAnotherStore) {
  StoreWorld other(3);
  ASSERT_TRUE(other.create(shape_).ok());
  world_.folder(1).put(StoreWorld::kFile, other.bytes(1));
  expect_refused(Code::kCorrupt, "/drive1: belongs to store ");
}

TEST_F(StoreOpen, NamesAnotherFormat) {
  set_format(1, 7);
  expect_refused(Code::kUsage,
                 "/drive1/rank0.tiles: store header: written in store format 7, this program reads format 2 to 3");
}

TEST_F(StoreOpen, NamesAFileOfAnotherLength) {
  world_.bytes(2).resize(world_.bytes(2).size() - 4096);
  expect_refused(Code::kCorrupt, "/drive2/rank0.tiles: ");
}

TEST_F(StoreOpen, NamesAFileThatIsNoStore) {
  std::fill(world_.bytes(0).begin(), world_.bytes(0).end(), std::byte{42});
  expect_refused(Code::kUsage, "/drive0/rank0.tiles: store header: not a penstock store record");
  world_.folder(0).put(StoreWorld::kFile, MemoryFile::Bytes(100));
  expect_refused(Code::kUsage, "/drive0/rank0.tiles: not a store: 100 B long, at least 131072 B expected");
}

TEST_F(StoreOpen, NamesADriveWhoseContentsAreGone) {
  std::fill(world_.bytes(1).begin(), world_.bytes(1).end(), std::byte{0});
  expect_refused(Code::kCorrupt, "/drive1/rank0.tiles: only zeros, but /drive0 has store ");
}

TEST_F(StoreOpen, NamesAHeaderThatIsDamagedTwice) {
  world_.bytes(1)[StoreLayout::header_offset(0) + 50] ^= std::byte{1};
  world_.bytes(1)[StoreLayout::header_offset(1) + 50] ^= std::byte{1};
  expect_refused(Code::kCorrupt, "/drive1/rank0.tiles: store header: its checksum does not match");
}

// A store in a real file, which can be mostly holes: what it says of itself may then be far more than what is there.
class SparseStore : public testing::Test {
 protected:
  SparseStore() : folders_(direct_folders({scratch_.path()})), made_(make_io_engine().value()) {
    Buffer memory = Buffer::on_heap(2 * kChunkBytes);
    CreateOptions options;
    options.memory = memory.bytes();
    options.payload = TrainingNumbers{}.payload();
    CHECK(TileStore::create(*made_.engine, folders_, shape_, options, initial_fill).ok());
    std::vector<char> begin(StoreLayout::shape_offset());
    CHECK(std::ifstream(path_).read(begin.data(), static_cast<std::streamsize>(begin.size())));
    const std::span<const std::byte> bytes = std::as_bytes(std::span(begin));
    header_ = *StoreHeader::decode(bytes.subspan(StoreLayout::header_offset(0), kRecordBytes), "header");
    root_ = *RootRecord::decode(bytes.subspan(StoreLayout::root_offset(0), kRecordBytes), "root");
  }

  // Headers and roots of a store of this shape, whose encoding is `shape_bytes` long, and a hole behind it.
  void claim(const StoreShape& shape, uint64_t shape_bytes, uint64_t file_bytes) {
    const int file = open(path_.c_str(), O_RDWR);
    CHECK(file >= 0 && ftruncate(file, StoreLayout::shape_offset()) == 0);
    CHECK(ftruncate(file, static_cast<off_t>(file_bytes)) == 0, "no holes here: errno ", errno);
    const auto put = [&](uint64_t offset, const std::vector<std::byte>& bytes) {
      CHECK(pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes.size()));
    };
    StoreHeader header = header_;
    header.shape_bytes = shape_bytes;
    header.shape_digest = shape.digest();
    header.file_bytes = file_bytes;
    RootRecord root = root_;
    root.shape_digest = header.shape_digest;
    root.page_slots.assign(TableGeometry(shape).pages(), 0);
    for (uint32_t copy = 0; copy < 2; ++copy) {
      put(StoreLayout::header_offset(copy), header.encode());
      put(StoreLayout::root_offset(copy), root.encode());
    }
    put(StoreLayout::shape_offset(), shape.encode());
    close(file);
  }
  Status opened() { return TileStore::open(*made_.engine, folders_, {}).status(); }

  const StoreShape shape_ = small_shape(3, 3000, kBlockElements);
  const ScratchFolder scratch_{std::filesystem::current_path()};
  const std::string path_ = scratch_ / store_file_name(0);
  const std::vector<std::shared_ptr<DriveFolder>> folders_;
  MadeIoEngine made_;
  StoreHeader header_;
  RootRecord root_;
};

TEST_F(SparseStore, IsNamedForWhatItIsWhereItWasCutShort) {
  for (const uint64_t left_bytes : {0, 100}) {
    std::filesystem::resize_file(path_, left_bytes);
    const Status status = opened();
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_EQ(status.message().find(path_ + ": cut short, or its creation was interrupted: "), 0u) << status.message();
    EXPECT_NE(status.message().find(text(left_bytes, " B")), std::string::npos) << status.message();
    EXPECT_FALSE(status.remedy().empty());
  }
  std::filesystem::resize_file(path_, 8192);
  EXPECT_EQ(opened().message(), path_ + ": not a store: 8192 B long, at least 131072 B expected");
  std::filesystem::resize_file(path_, kMiB);
  EXPECT_NE(opened().message().find("half-created"), std::string::npos) << "all zeros, as creation leaves it first";
}

// As long as its shape says, whose laying out takes time by it, and its table memory.
TEST_F(SparseStore, IsRefusedWhereItIsLongerThanItsDrive) {
  const uint64_t drive_bytes = describe_drive(scratch_.path()).value().total_bytes;
  StoreShape vast = shape_;
  vast.tiles[0].elements = round_up(drive_bytes / 16, kBlockElements);
  const uint64_t file_bytes = StoreLayout(vast, 2, {kShareWhole}).file_bytes(0);
  ASSERT_GT(file_bytes, drive_bytes);
  if (file_bytes > 15 * 1024 * kGiB) GTEST_SKIP() << "no file here may be longer than its drive";
  claim(vast, vast.encode().size(), file_bytes);
  const Status status = opened();
  EXPECT_EQ(status.code(), Code::kDoesNotFit) << status.message();
  EXPECT_NE(status.message().find(": most of it is holes"), std::string::npos) << status.message();
}

TEST_F(SparseStore, IsRefusedWithADescriptionOfMoreThanAnyShapeTakes) {
  claim(shape_, kShapeBytesMax + 1, 2 * kGiB);
  Status status = opened();
  EXPECT_EQ(status.message(), path_ + ": store header: a store header with invalid fields");
  claim(shape_, kShapeBytesMax, 2 * kGiB);
  status = opened();
  EXPECT_EQ(status.message().find(path_ + ": the description of what is stored is damaged"), 0u) << status.message();
}

// Units, kinds or tiles that are all zeros take no more than eight bytes each in a file, and several times as much
// here.
TEST_F(SparseStore, IsRefusedAtTheFirstHoleInItsDescription) {
  if (test::kStride != 1) GTEST_SKIP() << "sanitizers take address space without limit";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto open_in_little_memory = [this](const std::vector<uint32_t>& fields) {
    claim(shape_, kShapeBytesMax, kGiB);
    std::vector<std::byte> description(64 * kKiB);
    std::memcpy(description.data(), fields.data(), fields.size() * sizeof(uint32_t));
    const int file = open(path_.c_str(), O_RDWR);
    CHECK(pwrite(file, description.data(), description.size(), static_cast<off_t>(StoreLayout::shape_offset())) > 0);
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t bytes = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + 2 * kShapeBytesMax;
    const rlimit little{bytes, bytes};
    CHECK(setrlimit(RLIMIT_AS, &little) == 0);
    const Status status = opened();
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::filesystem::remove_all(scratch_.path());  // this process has a fixture of its own, and nobody destroys it
    _exit(static_cast<int>(status.code()));
  };
  const uint32_t rank = 0, ranks = 1, many = 40'000'000;
  const std::vector<uint32_t> units{rank, ranks, many}, kinds{rank, ranks, 0, many}, tiles{rank, ranks, 0, 0, many};
  for (const std::vector<uint32_t>& fields : {units, kinds, tiles}) {
    EXPECT_EXIT(open_in_little_memory(fields), testing::ExitedWithCode(static_cast<int>(Code::kCorrupt)),
                "the description of what is stored is damaged");
  }
}

}  // namespace
}  // namespace penstock::aio
