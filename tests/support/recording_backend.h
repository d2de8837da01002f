// RecordingBackend writes down what was written, what ended and what was flushed, in order. From the log follows what a
// file may hold after a power failure at any moment: see crash_image.h.
#pragma once

#include <memory>
#include <vector>

#include "tests/support/wrapping_backend.h"

namespace penstock::aio {

struct IoEvent {
  enum class Kind : uint8_t { write_submitted, write_ended, flush_submitted, flush_ended };

  Kind kind;
  const File* file;
  uint64_t offset_bytes = 0;
  std::vector<std::byte> data;  // of write_submitted
  int32_t result = 0;           // of the ended: bytes, or -errno
  size_t submitted = 0;         // of the ended: the index of the event that began it
};

using IoLog = std::vector<IoEvent>;

class RecordingBackend final : public WrappingBackend {
 public:
  // `log` outlives the backend.
  RecordingBackend(std::unique_ptr<IoBackend> inner, IoLog& log);

  void submit(const Piece& piece) override;
  size_t reap(std::span<Completion> ended, std::chrono::nanoseconds timeout) override;
  std::string description() const override { return "recorded " + inner_->description(); }

 private:
  static constexpr size_t kNotRecorded = ~size_t{0};

  IoLog& log_;
  std::vector<size_t> event_of_tag_;
};

}  // namespace penstock::aio
