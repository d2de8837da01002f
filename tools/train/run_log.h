// RunLog is the log.jsonl of a run, one object a step. Its last line may have no end yet: it is of a step after which
// an evaluation, samples or a snapshot were under way, and is there for who goes on when the process has ended
// meanwhile. Lines for which there is no space wait in memory until there is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "aio/file_descriptor.h"
#include "tiering/status.h"
#include "tools/penstock/verb.h"

namespace penstock::tools {

std::string line_text(const Json& line);

class RunLog {
 public:
  // Without a folder, nothing is kept.
  static Result<RunLog> open(const std::string& folder);

  // The line so far; the next one takes its place.
  void hold(const Json& line);
  // Refused where neither it nor what waits from before could be written, which is tried again with the next line, and
  // by write_waiting().
  Status add(const Json& line);
  Status write_waiting();
  bool is_too_long() const { return waiting_.size() > kWaitingMostBytes; }
  // What was held when the process before this one ended, until the next line.
  const std::optional<Json>& left() const { return left_; }

 private:
  static constexpr size_t kWaitingMostBytes = 1 << 20;

  Status find_left();
  void drop_held();
  bool is_kept() const { return file_ != nullptr; }
  // All of it or nothing.
  Status append(const std::string& bytes);

  std::filesystem::path path_;
  std::unique_ptr<aio::FileDescriptor> file_;
  std::string waiting_;
  std::optional<uint64_t> held_at_bytes_;
  std::optional<Json> left_;
};

}  // namespace penstock::tools
