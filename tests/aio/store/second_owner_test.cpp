// A writer is killed in the middle of heavy writing, and a second owner comes at once. The kernel may still have writes
// of the dead one under way; none of them may land on top of what the second one writes.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "aio/make_io_engine.h"
#include "tests/aio/test_files.h"

namespace penstock::aio {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr uint64_t kFileBytes = 16 * kMiB;
constexpr uint64_t kPieceBytes = 512 * kKiB;
constexpr uint64_t kOld = 1;

const FileOptions kPatient{.lock_wait = std::chrono::seconds(10), .in_memory = InMemory::allow};

// Writes the file over and over, all of it under way at once, until somebody kills it.
[[noreturn]] void write_until_killed(const std::string& path, IoEngineChoice choice, int ready) {
  auto file = DirectFile::open(path, Access::read_write, kPatient);
  auto made =
      make_io_engine(choice, {.drive = {.block_bytes = kPieceBytes, .depth = 32}, .drives = {}, .on_stuck = {}});
  if (!file.ok() || !made.ok()) _exit(1);
  OwnMemory memory(kFileBytes);
  fill_telling(memory.bytes(), kOld, 0);
  made->engine->register_file(**file);
  for (bool told = false;; told = true) {
    Transfer all = made->engine->write(**file, 0, memory.lease());
    if (!told && ::write(ready, "!", 1) != 1) _exit(1);
    if (!std::move(all).wait().ok()) _exit(1);
  }
}

class SecondOwner : public ::testing::TestWithParam<IoEngineChoice> {};

TEST_P(SecondOwner, WaitsForTheDeadOnesWrites) {
  const IoEngineChoice choice = GetParam();
  if (auto made = make_io_engine(choice); !made.ok()) GTEST_SKIP() << made.status().message();
  // On a slow drive the dead one's writes take long, so that there is something to wait for.
  const std::string slow = "/run/penstock-test-drives/tenth";
  ScratchFolder scratch;
  const std::string path = fs::exists(slow) ? text(slow, "/second_owner_test-", getpid()) : scratch / "file";
  fs::remove(path);
  {
    auto file = DirectFile::create(path, kFileBytes, Existing::refuse, kPatient);
    ASSERT_TRUE(file.ok()) << file.status().message();
    (*file)->keep();
  }

  const int rounds = choice == IoEngineChoice::io_uring ? 100 : 10;
  std::mt19937_64 random(1);
  auto waited_most = steady_clock::duration::zero();
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(text("seed 1, round ", round));
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t writer = fork();
    if (writer == 0) write_until_killed(path, choice, ready[1]);
    close(ready[1]);
    char byte;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1) << "the writer has not come to write";
    close(ready[0]);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    kill(writer, SIGKILL);

    const auto killed = steady_clock::now();
    auto file = DirectFile::open(path, Access::read_write, kPatient);
    ASSERT_TRUE(file.ok()) << file.status().message();
    waited_most = std::max(waited_most, steady_clock::now() - killed);
    auto made = make_io_engine(choice);
    ASSERT_TRUE(made.ok());
    OwnMemory memory(kFileBytes);
    const uint64_t version = 2 + static_cast<uint64_t>(round);
    fill_telling(memory.bytes(), version, 0);
    ASSERT_TRUE(made->engine->write(**file, 0, memory.lease()).wait().ok());
    int status = 0;
    ASSERT_EQ(waitpid(writer, &status, 0), writer);
    EXPECT_TRUE(WIFSIGNALED(status));
    std::memset(memory.bytes().data(), 0, kFileBytes);
    ASSERT_TRUE(made->engine->read(**file, 0, memory.lease()).wait().ok());
    ASSERT_EQ(first_wrong(memory.bytes(), version, 0), -1) << "an old write has landed on top of a new one";
  }
  fs::remove(path);
  if (fs::exists(slow)) {
    EXPECT_GT(waited_most, std::chrono::milliseconds(10)) << "nobody ever had to wait: this shows nothing";
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, SecondOwner,
                         ::testing::Values(IoEngineChoice::io_uring, IoEngineChoice::libaio, IoEngineChoice::threads),
                         [](const auto& engine) { return std::string(name_of(engine.param)); });

}  // namespace
}  // namespace penstock::aio
