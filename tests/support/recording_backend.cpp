#include "tests/support/recording_backend.h"

#include <utility>

namespace penstock::aio {

RecordingBackend::RecordingBackend(std::unique_ptr<IoBackend> inner, IoLog& log)
    : WrappingBackend(std::move(inner)), log_(log), event_of_tag_(inner_->capacity(), kNotRecorded) {}

void RecordingBackend::submit(const Piece& piece) {
  event_of_tag_[piece.tag] = kNotRecorded;
  if (piece.operation == Operation::write) {
    event_of_tag_[piece.tag] = log_.size();
    log_.push_back({IoEvent::Kind::write_submitted, piece.file, piece.offset_bytes,
                    std::vector<std::byte>(piece.data, piece.data + piece.length_bytes), 0, log_.size()});
  } else if (piece.operation == Operation::flush) {
    event_of_tag_[piece.tag] = log_.size();
    log_.push_back({IoEvent::Kind::flush_submitted, piece.file, 0, {}, 0, log_.size()});
  }
  inner_->submit(piece);
}

size_t RecordingBackend::reap(std::span<Completion> ended, std::chrono::nanoseconds timeout) {
  const size_t count = inner_->reap(ended, timeout);
  for (size_t i = 0; i < count; ++i) {
    const size_t submitted = event_of_tag_[ended[i].tag];
    if (submitted == kNotRecorded) continue;
    const bool write = log_[submitted].kind == IoEvent::Kind::write_submitted;
    log_.push_back({write ? IoEvent::Kind::write_ended : IoEvent::Kind::flush_ended,
                    log_[submitted].file,
                    log_[submitted].offset_bytes,
                    {},
                    ended[i].result,
                    submitted});
  }
  return count;
}

}  // namespace penstock::aio
