// What QueuedIoEngine makes of short transfers, and of what waits behind a flush that fails.
#include "aio/queued_io_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "tests/aio/test_files.h"
#include "tests/support/memory_backend.h"
#include "tests/support/scripted_backend.h"
#include "tests/support/wrapping_backend.h"

namespace penstock::aio {
namespace {

// Moves so many bytes of each piece, whatever its length.
class SlowBackend final : public WrappingBackend {
 public:
  explicit SlowBackend(uint32_t bytes) : WrappingBackend(std::make_unique<MemoryBackend>()), bytes_(bytes) {}

  void submit(const Piece& piece) override {
    Piece part = piece;
    part.length_bytes = std::min(bytes_, piece.length_bytes);
    inner_->submit(part);
  }

 private:
  const uint32_t bytes_;
};

TEST(QueuedIoEngine, GoesOnAsLongAsEveryCallMovesABlock) {
  constexpr uint64_t kBlocks = 40;  // four times as many calls as may pass without progress
  MemoryFile file("a", kBlocks * 4096);
  QueuedIoEngine engine(std::make_unique<SlowBackend>(4096),
                        {.drive = {.block_bytes = kBlocks * 4096}, .drives = {}, .on_stuck = {}});
  OwnMemory written(kBlocks * 4096), read(kBlocks * 4096);
  fill_telling(written.bytes(), 3, 0);
  const auto write_end = engine.write(file, 0, written.lease()).wait();
  ASSERT_TRUE(write_end.ok()) << write_end.status().message();
  const auto read_end = engine.read(file, 0, read.lease()).wait();
  ASSERT_TRUE(read_end.ok()) << read_end.status().message();
  EXPECT_EQ(first_wrong(read.bytes(), 3, 0), -1);
}

TEST(QueuedIoEngine, RefusesAWriteThatWasQueuedWhenAFlushFailed) {
  MemoryFile file("a", 8192);
  auto backend = std::make_unique<ScriptedBackend>(std::make_unique<MemoryBackend>(), [](const Piece& piece) {
    return piece.operation == Operation::flush ? EIO : ScriptedBackend::kPass;
  });
  QueuedIoEngine engine(std::move(backend), {.drive = {.depth = 1}, .drives = {}, .on_stuck = {}});
  OwnMemory memory(4096);
  fill_telling(memory.bytes(), 3, 0);
  Transfer flush = engine.flush(file);
  Transfer write = engine.write(file, 0, memory.lease());  // waits for the flush's place
  EXPECT_FALSE(std::move(flush).wait().ok());
  const auto write_end = std::move(write).wait();
  ASSERT_FALSE(write_end.ok());
  EXPECT_NE(write_end.status().message().find("an earlier flush of this file has failed"), std::string::npos)
      << write_end.status().message();
  EXPECT_EQ(file.bytes()[0], std::byte{0});
}

}  // namespace
}  // namespace penstock::aio
