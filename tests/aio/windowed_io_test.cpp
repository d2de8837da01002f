#include "aio/windowed_io.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "aio/queued_io_engine.h"
#include "tests/support/faulty_backend.h"
#include "tests/support/memory_backend.h"
#include "tests/support/scripted_backend.h"

namespace penstock::aio {
namespace {

constexpr uint64_t kWindowBytes = 8192, kWindows = 3, kParts = 40;

// A file of as many windows, each filled with its number; reads and writes end late and in any order.
class WindowedIoTest : public testing::Test {
 protected:
  WindowedIoTest() {
    for (uint64_t part = 0; part < kParts; ++part) {
      std::memset(bytes_->data() + part * kWindowBytes, static_cast<int>(part), kWindowBytes);
    }
  }
  std::unique_ptr<IoBackend> late() const {
    FaultOptions options;
    options.seed = 5;
    options.delay_chance = 0.7;
    return std::make_unique<FaultyBackend>(std::make_unique<MemoryBackend>(), options);
  }
  Extent extent(uint64_t part) const { return {&file_, part * kWindowBytes, 0, kWindowBytes}; }

  const std::shared_ptr<MemoryFile::Bytes> bytes_ = std::make_shared<MemoryFile::Bytes>(kParts * kWindowBytes);
  const MemoryFile file_{"file", bytes_, 0};
  const Buffer memory_ = Buffer::on_heap(kWindows * kWindowBytes);
  BufferPool windows_{Tier::host, memory_.bytes(), kWindowBytes};
};

TEST_F(WindowedIoTest, ReadsUsesAndWritesEveryPartOnce) {
  QueuedIoEngine engine(late());
  WindowedIo io(engine, windows_);
  uint64_t used = 0, written = 0;
  for (uint64_t part = 0; part < kParts; ++part) {
    Result<Lease> window = io.free_window();
    ASSERT_TRUE(window.ok());
    io.read(std::vector{extent(part)}, *std::move(window), [&, part](Result<Lease> read) {
      ++used;
      EXPECT_EQ(read->bytes()[77], static_cast<std::byte>(part));
      std::memset(read->data(), static_cast<int>(part + 100), kWindowBytes);
      io.write(std::vector{extent(part)}, *std::move(read), [&](const Result<Lease>& ended) {
        ++written;
        return ended.status();
      });
      return Status();
    });
  }
  EXPECT_TRUE(io.finish().ok());
  EXPECT_EQ(windows_.pieces_free(), kWindows);
  EXPECT_EQ(used, kParts);
  EXPECT_EQ(written, kParts);
  for (uint64_t part = 0; part < kParts; ++part) {
    EXPECT_EQ((*bytes_)[part * kWindowBytes + 5], static_cast<std::byte>(part + 100)) << part;
  }
}

// What a function waits for may be another request's end: nothing is called inside the engine's poll().
TEST_F(WindowedIoTest, LetsAFunctionWaitForTheEngine) {
  QueuedIoEngine engine(late());
  WindowedIo io(engine, windows_);
  const Buffer other = Buffer::on_heap(4096);
  uint64_t used = 0;
  int depth = 0;
  for (uint64_t part = 0; part < kParts; ++part) {
    io.read(std::vector{extent(part)}, *io.free_window(), [&](const Result<Lease>&) {
      EXPECT_EQ(++depth, 1) << "called inside another";
      EXPECT_TRUE(engine.read(file_, 4096, Lease::over(Tier::host, other.bytes())).wait().ok());
      --depth;
      ++used;
      return Status();
    });
  }
  EXPECT_TRUE(io.finish().ok());
  EXPECT_EQ(used, kParts);
}

TEST_F(WindowedIoTest, EndsWithTheFirstRefusalAndHandsOnNoBytesAfterIt) {
  QueuedIoEngine engine(late());
  WindowedIo io(engine, windows_);
  uint64_t asked = 0, ended = 0, with_bytes = 0;
  Status stopped;
  for (uint64_t part = 0; part < kParts && stopped.ok(); ++part) {
    Result<Lease> window = io.free_window();
    stopped = window.status();
    if (!window.ok()) break;
    ++asked;
    io.read(std::vector{extent(part)}, *std::move(window), [&](const Result<Lease>& read) {
      with_bytes += read.ok();
      return ++ended == 5 ? Status(Code::kUsage, "the fifth") : read.status();
    });
  }
  EXPECT_EQ(stopped.message(), "the fifth");
  EXPECT_LT(asked, kParts);
  EXPECT_EQ(io.finish().message(), "the fifth");
  EXPECT_EQ(ended, asked) << "everybody is told";
  EXPECT_EQ(with_bytes, 5u);
  EXPECT_EQ(windows_.pieces_free(), kWindows);
}

TEST_F(WindowedIoTest, AWriteThatFailsIsARefusalWhereNobodyLooksAtIt) {
  QueuedIoEngine engine(std::make_unique<ScriptedBackend>(std::make_unique<MemoryBackend>(), [](const Piece& piece) {
    return piece.offset_bytes == 7 * kWindowBytes ? EIO : ScriptedBackend::kPass;
  }));
  WindowedIo io(engine, windows_);
  for (uint64_t part = 0; part < kParts; ++part) {
    Result<Lease> window = io.free_window();
    if (!window.ok()) break;
    io.write(std::vector{extent(part)}, *std::move(window));
  }
  EXPECT_NE(io.finish().message().find("EIO"), std::string::npos);
}

TEST_F(WindowedIoTest, WaitsForWhatIsUnderWayWhenItIsDestroyed) {
  QueuedIoEngine engine(late());
  uint64_t ended = 0;
  {
    WindowedIo io(engine, windows_);
    for (uint64_t part = 0; part < kWindows; ++part) {
      io.read(std::vector{extent(part)}, *io.free_window(), [&](const Result<Lease>&) {
        ++ended;
        return Status();
      });
    }
  }
  EXPECT_EQ(ended, kWindows);
}

}  // namespace
}  // namespace penstock::aio
