#include "tests/support/crash_image.h"

#include <gtest/gtest.h>

#include "aio/queued_io_engine.h"
#include "tests/aio/test_files.h"
#include "tests/support/memory_backend.h"

namespace penstock::aio {
namespace {

class CrashImage : public ::testing::Test {
 protected:
  void write(const File& to, uint64_t seed, uint64_t offset_bytes, uint64_t bytes) {
    OwnMemory memory(bytes);
    fill_telling(memory.bytes(), seed, offset_bytes);
    ASSERT_TRUE(engine_.write(to, offset_bytes, memory.lease()).wait().ok());
  }
  std::vector<std::byte> image(const File& of, Crash crash) const {
    return crash_image(log_, of, std::vector<std::byte>(of.size_bytes()), crash);
  }
  // 's' for a block of 4 KiB that holds the seed's bytes, '0' for zeros, '?' for anything else.
  std::string blocks(const std::vector<std::byte>& image, uint64_t seed) const {
    std::string out;
    for (size_t at = 0; at < image.size(); at += 4096) {
      const std::span<const std::byte> block(&image[at], 4096);
      const bool zero = std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; });
      out += zero ? '0' : first_wrong(block, seed, at) == -1 ? 's' : '?';
    }
    return out;
  }

  IoLog log_;
  MemoryFile file_{"a", 16 * 4096};
  MemoryFile other_{"b", 16 * 4096};
  QueuedIoEngine engine_{std::make_unique<RecordingBackend>(std::make_unique<MemoryBackend>(), log_)};
};

TEST_F(CrashImage, KeepsWhatWasFlushedWhateverHappensToTheRest) {
  write(file_, 1, 0, 4 * 4096);
  ASSERT_TRUE(engine_.flush(file_).wait().ok());
  write(file_, 1, 4 * 4096, 4 * 4096);
  EXPECT_EQ(blocks(image(file_, {log_.size(), Unsafe::lost}), 1), "ssss000000000000");
  EXPECT_EQ(blocks(image(file_, {log_.size(), Unsafe::kept}), 1), "ssssssss00000000");
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 200; ++seed) seen.insert(blocks(image(file_, {log_.size(), Unsafe::chance, seed}), 1));
  EXPECT_EQ(seen.size(), 16u) << "every combination of the four blocks";
  for (const std::string& one : seen) EXPECT_EQ(one.substr(0, 4), "ssss");
}

TEST_F(CrashImage, AFlushMakesSafeWhatEndedBeforeItOnItsDrive) {
  write(other_, 1, 0, 4096);
  write(file_, 1, 0, 4096);
  ASSERT_TRUE(engine_.flush(file_).wait().ok());
  EXPECT_EQ(blocks(image(other_, {log_.size(), Unsafe::lost}), 1)[0], 's') << "the same drive";
  const MemoryFile elsewhere("c", 4096, 7);
  write(elsewhere, 1, 0, 4096);
  ASSERT_TRUE(engine_.flush(file_).wait().ok());
  EXPECT_EQ(blocks(image(elsewhere, {log_.size(), Unsafe::lost}), 1), "0") << "another drive";
}

TEST_F(CrashImage, AFlushThatHadNotEndedMakesNothingSafe) {
  write(file_, 1, 0, 4096);
  ASSERT_TRUE(engine_.flush(file_).wait().ok());
  ASSERT_EQ(log_.size(), 4u);
  for (size_t events = 0; events <= 4; ++events) {
    EXPECT_EQ(blocks(image(file_, {events, Unsafe::lost}), 1)[0], events == 4 ? 's' : '0') << events;
    EXPECT_EQ(blocks(image(file_, {events, Unsafe::kept}), 1)[0], events >= 1 ? 's' : '0') << events;
  }
}

TEST_F(CrashImage, AWriteUnderWayAtTheFlushIsNotMadeSafe) {
  const std::vector<std::byte> data(4096, std::byte{1});
  log_ = {{IoEvent::Kind::write_submitted, &file_, 0, data, 0, 0},
          {IoEvent::Kind::flush_submitted, &file_, 0, {}, 0, 1},
          {IoEvent::Kind::write_ended, &file_, 0, {}, 4096, 0},
          {IoEvent::Kind::flush_ended, &file_, 0, {}, 0, 1}};
  EXPECT_EQ(image(file_, {4, Unsafe::lost})[0], std::byte{0});
  log_[3].result = -5;  // nor one before a flush that failed
  std::swap(log_[1], log_[2]);
  log_[3].submitted = 2;
  EXPECT_EQ(image(file_, {4, Unsafe::lost})[0], std::byte{0});
  log_[3].result = 0;
  EXPECT_EQ(image(file_, {4, Unsafe::lost})[0], std::byte{1});
}

}  // namespace
}  // namespace penstock::aio
