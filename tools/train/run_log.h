// RunLog is the log.jsonl of a run, one object a step. Its last line may have no end yet: it is of a step after which
// an evaluation, samples or a snapshot were under way, and is there for who goes on when the process has ended
// meanwhile.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

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
  void add(const Json& line);
  // What was held when the process before this one ended, until the next line.
  const std::optional<Json>& left() const { return left_; }

 private:
  Status find_left();
  void drop_held();

  std::filesystem::path path_;
  std::ofstream file_;
  std::optional<uint64_t> held_at_bytes_;
  std::optional<Json> left_;
};

}  // namespace penstock::tools
