// ExclusiveBackend notices two requests under way at once of which one writes what the other touches: on a real drive
// they end in any order, so what is there then is anybody's guess.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "tests/support/wrapping_backend.h"
#include "tiering/status.h"

namespace penstock::aio {

class ExclusiveBackend final : public WrappingBackend {
 public:
  // `conflict` outlives the backend: the first one, in words; empty while there is none.
  ExclusiveBackend(std::unique_ptr<IoBackend> inner, std::string& conflict)
      : WrappingBackend(std::move(inner)), conflict_(conflict) {}

  void submit(const Piece& piece) override {
    if (piece.operation != Operation::flush) {
      for (const auto& [tag, other] : under_way_) compare(piece, other);
      under_way_[piece.tag] = piece;
    }
    inner_->submit(piece);
  }
  size_t reap(std::span<Completion> ended, std::chrono::nanoseconds timeout) override {
    const size_t count = inner_->reap(ended, timeout);
    for (const Completion& each : ended.first(count)) under_way_.erase(each.tag);
    return count;
  }

 private:
  void compare(const Piece& piece, const Piece& other) {
    const bool apart = piece.file->path() != other.file->path() ||
                       piece.offset_bytes + piece.length_bytes <= other.offset_bytes ||
                       other.offset_bytes + other.length_bytes <= piece.offset_bytes;
    const bool both_read = piece.operation == Operation::read && other.operation == Operation::read;
    if (apart || both_read || !conflict_.empty()) return;
    conflict_ = text(name_of(piece.operation), " ", piece.length_bytes, " B at ", piece.offset_bytes, " of ",
                     piece.file->path(), " while ", name_of(other.operation), " ", other.length_bytes, " B at ",
                     other.offset_bytes, " is under way");
  }

  std::string& conflict_;
  std::map<uint32_t, Piece> under_way_;
};

}  // namespace penstock::aio
