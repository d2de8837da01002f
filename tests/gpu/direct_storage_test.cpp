// GPUDirect Storage over a stand-in for NVIDIA's library and the host device, whose memory the stand-in can reach: what
// is said where it is absent or refuses, and that it is used only where it brings the same bytes, and faster.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "aio/direct_file.h"
#include "aio/make_engine.h"
#include "gpu/direct_storage_probe.h"
#include "gpu/host_device.h"

namespace penstock::gpu {
namespace {

constexpr uint64_t kFileBytes = 2 * kMiB;
constexpr const char* kHostMemory = "; drives reach the GPU through pinned host memory";

class DirectStorageTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_);
    Result<std::unique_ptr<aio::DirectFile>> made = aio::DirectFile::create(folder_ / "tiles", kFileBytes);
    if (!made.ok()) GTEST_SKIP() << made.status().message();
    file_ = std::move(made).value();
    engine_ = aio::make_engine().value().engine;
    std::mt19937_64 random(5);
    for (std::byte& byte : bytes_.bytes()) byte = static_cast<std::byte>(random());
    ASSERT_TRUE(engine_->write(*file_, 0, Lease::over(Tier::host, bytes_.bytes())).wait().ok());
  }
  void TearDown() override {
    unsetenv("PRETEND_CUFILE");
    std::filesystem::remove_all(folder_);
  }

  static std::unique_ptr<Device> device(uint64_t bytes_per_s = 0) {
    return open_host_device({.arena_bytes = kFileBytes, .host_to_device_bytes_per_s = bytes_per_s}).value();
  }
  static void pretend(const char* how) { setenv("PRETEND_CUFILE", how, 1); }

  DirectStorageProbe probe(Device& device, const std::string& library = STAND_IN_CUFILE) {
    BufferPool pool(Tier::host, pieces_.bytes(), 256 * kKiB);
    Result<DirectStorageProbe> probe = probe_direct_storage({device, *engine_, pool, *file_, library});
    CHECK(probe.ok(), probe.status().message());
    return *probe;
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("penstock-direct-storage-" + std::to_string(getpid()));
  Buffer bytes_ = Buffer::on_heap(kFileBytes), pieces_ = Buffer::on_heap(4 * 256 * kKiB);
  std::unique_ptr<aio::DirectFile> file_;
  std::unique_ptr<IoEngine> engine_;
};

TEST_F(DirectStorageTest, SaysWhatIsMissing) {
  EXPECT_EQ(DirectStorage::open("libcufile-that-is-nowhere.so").status().message(),
            "GPUDirect Storage: libcufile-that-is-nowhere.so is not installed");
  EXPECT_EQ(DirectStorage::open(STAND_IN_CUFILE_WITHOUT_WRITE).status().message(),
            text("GPUDirect Storage: ", STAND_IN_CUFILE_WITHOUT_WRITE, " has no cuFileWrite"));
  pretend("open=5001");
  Status refused = DirectStorage::open(STAND_IN_CUFILE).status();
  EXPECT_EQ(refused.message(),
            text("GPUDirect Storage: ", STAND_IN_CUFILE, ": cuFile error 5001 (the nvidia-fs driver is not loaded)"));
  EXPECT_EQ(refused.code(), Code::kEnvironment);
  EXPECT_FALSE(refused.remedy().empty());
}

TEST_F(DirectStorageTest, ReadsAndWritesRunsAndContinuesShortOnes) {
  std::unique_ptr<Device> memory = device();
  std::unique_ptr<DirectStorage> storage = DirectStorage::open(STAND_IN_CUFILE).value();
  for (const char* how : {"", "most=4096"}) {
    pretend(how);
    std::span<std::byte> place = memory->memory().subspan(8192, 64 * kKiB);
    std::fill(place.begin(), place.end(), std::byte{0});
    ASSERT_TRUE(storage->read(*file_, 4096, place).ok());
    EXPECT_TRUE(std::equal(place.begin(), place.end(), bytes_.bytes().begin() + 4096)) << how;
    ASSERT_TRUE(storage->write(*file_, kMiB, place).ok());
    std::span<std::byte> other = memory->memory().subspan(kMiB, 64 * kKiB);
    ASSERT_TRUE(storage->read(*file_, kMiB, other).ok());
    EXPECT_TRUE(std::equal(place.begin(), place.end(), other.begin())) << how;
  }
  storage->forget(*file_);
}

TEST_F(DirectStorageTest, SaysWhichTransferWasRefused) {
  std::unique_ptr<Device> memory = device();
  std::unique_ptr<DirectStorage> storage = DirectStorage::open(STAND_IN_CUFILE).value();
  pretend("register=5011");
  EXPECT_EQ(storage->read(*file_, 0, memory->memory().first(4096)).message(),
            text("GPUDirect Storage of ", file_->path(), ": cuFile error 5011 (the CUDA driver refuses: 35)"));
  pretend("read=5008");
  EXPECT_EQ(
      storage->read(*file_, 8192, memory->memory().first(4096)).message(),
      text("read 4096 B at 8192 of ", file_->path(), " by cuFile: cuFile error 5008 (not supported for this file)"));
  pretend("read=1");  // -1, with errno
  EXPECT_EQ(storage->read(*file_, 8192, memory->memory().first(4096)).message(),
            text("read 4096 B at 8192 of ", file_->path(), " by cuFile: EIO (Input/output error)"));
}

TEST_F(DirectStorageTest, IsUsedWhereItIsFaster) {
  std::unique_ptr<Device> memory = device(50'000'000);  // 2 MiB take 40 ms through host memory
  DirectStorageProbe found = probe(*memory);
  EXPECT_TRUE(found.is_used) << found.explanation;
  EXPECT_GE(found.direct_bytes_per_s, kDirectStorageGain * found.bounce_bytes_per_s);
  EXPECT_LE(found.bounce_bytes_per_s, 50'000'000);
  EXPECT_NE(found.explanation.find(" GB/s against 0.0"), std::string::npos) << found.explanation;
  EXPECT_TRUE(std::equal(bytes_.bytes().begin(), bytes_.bytes().end(), memory->memory().begin()));
}

TEST_F(DirectStorageTest, IsLeftAloneWhereItGainsNothing) {
  pretend("sleep_us=200000");
  DirectStorageProbe found = probe(*device());
  EXPECT_FALSE(found.is_used) << found.explanation;
  EXPECT_GT(found.direct_bytes_per_s, 0);
  EXPECT_NE(found.explanation.find(": not used, since it gains less than a tenth"), std::string::npos)
      << found.explanation;
}

TEST_F(DirectStorageTest, IsLeftAloneWhereItRefusesOrBringsOtherBytes) {
  EXPECT_EQ(probe(*device(), "libcufile-that-is-nowhere.so").explanation,
            text("GPUDirect Storage: libcufile-that-is-nowhere.so is not installed", kHostMemory));
  pretend("register=5008");
  EXPECT_EQ(probe(*device()).explanation, text("GPUDirect Storage of ", file_->path(),
                                               ": cuFile error 5008 (not supported for this file)", kHostMemory));
  pretend("wrong=1");
  DirectStorageProbe wrong = probe(*device(50'000'000));
  EXPECT_FALSE(wrong.is_used);
  EXPECT_EQ(wrong.explanation, text("GPUDirect Storage brought other bytes of ", file_->path(), kHostMemory));
}

}  // namespace
}  // namespace penstock::gpu
