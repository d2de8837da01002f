// One arena, registered with the drives' ring and with the device's copy engines at once, as the engine has it: bytes
// go from a file to the device and back to another file without a copy in between, with a fork while they are under
// way. On the host device, and on a GPU where there is one.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "aio/direct_file.h"
#include "aio/host_arena.h"
#include "aio/make_io_engine.h"
#include "tests/gpu/device_cases.h"

namespace penstock {
namespace {

constexpr uint64_t kBytes = 8 * kMiB;

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("penstock-shared-arena-" + std::to_string(getpid()))) {
    std::filesystem::create_directory(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const char* name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

void fork_and_wait() {
  pid_t child = fork();
  if (child == 0) _exit(0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
}

class SharedArena : public testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    if (std::string absent = GetParam().absent(); !absent.empty()) GTEST_SKIP() << absent;
  }
};

TEST_P(SharedArena, ServesDrivesAndDeviceAtOnceThroughAFork) {
  Folder folder;
  std::unique_ptr<aio::HostArena> arena = aio::HostArena::make(4 * kBytes).value();
  std::unique_ptr<IoEngine> engine = aio::make_io_engine().value().engine;
  engine->register_memory(arena->bytes());
  std::unique_ptr<Device> opened = GetParam().open(kBytes).value();
  Device& device = *opened;
  HostRegistration registered = device.register_host_memory(arena->bytes(), {});
  EXPECT_EQ(registered.extent, HostRegistration::Extent::all) << registered.explanation;
  // What this run proves, which depends on the machine.
  std::printf("%s; %s\n", device.description().c_str(), engine->description().c_str());

  Result<std::unique_ptr<aio::DirectFile>> source = aio::DirectFile::create(folder.file("source"), kBytes);
  if (!source.ok()) GTEST_SKIP() << source.status().message();
  std::unique_ptr<aio::DirectFile> target = aio::DirectFile::create(folder.file("target"), kBytes).value();

  BufferPool pool(Tier::host, arena->bytes(), kBytes);
  auto everything = [&] { return Lease::over(Tier::device, device.memory()); };
  Lease window = *pool.try_lease();
  std::vector<std::byte> wanted(kBytes);
  std::mt19937_64 random(4);
  for (std::byte& byte : wanted) byte = static_cast<std::byte>(random());
  std::copy(wanted.begin(), wanted.end(), window.data());
  ASSERT_TRUE(engine->write(**source, 0, std::move(window)).wait().ok());

  for (int round = 0; round < 3; ++round) {
    Transfer read = engine->read(**source, 0, *pool.try_lease());
    fork_and_wait();
    Result<Lease> from_drive = std::move(read).wait();
    ASSERT_TRUE(from_drive.ok()) << from_drive.status().message();
    Copy in = device.copy(std::move(*from_drive), everything());
    fork_and_wait();
    Copy out = device.copy(everything(), *pool.try_lease(), {&in.done, 1});
    Result<Lease> from_device = std::move(out.transfer).wait();
    ASSERT_TRUE(from_device.ok()) << from_device.status().message();
    Result<Lease> written = engine->write(*target, 0, std::move(*from_device)).wait();
    ASSERT_TRUE(written.ok()) << written.status().message();
    ASSERT_TRUE(std::move(in.transfer).wait().ok());
    Lease back = *pool.try_lease();
    std::fill_n(back.data(), kBytes, std::byte{0});
    Result<Lease> read_back = engine->read(*target, 0, std::move(back)).wait();
    ASSERT_TRUE(read_back.ok());
    ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), read_back->data())) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(HostDevice, SharedArena, testing::Values(host_case()), device_case_name);
INSTANTIATE_TEST_SUITE_P(CudaDevice, SharedArena, testing::Values(cuda_case()), device_case_name);

}  // namespace
}  // namespace penstock
