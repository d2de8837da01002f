#include "tools/train/run_log.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "tiering/tier.h"

namespace penstock::tools {

// What a model writes may end within a character.
std::string line_text(const Json& line) { return line.dump(-1, ' ', false, Json::error_handler_t::replace); }

Result<RunLog> RunLog::open(const std::string& folder) {
  RunLog log;
  if (folder.empty()) return Result<RunLog>(std::move(log));
  log.path_ = folder + "/log.jsonl";
  log.file_.open(log.path_, std::ios::app);
  if (!log.file_) return errno_status(text("--run: ", log.path_.string()), errno, "a folder that may be written to");
  PENSTOCK_TRY(log.find_left());
  return Result<RunLog>(std::move(log));
}

Status RunLog::find_left() {
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path_, error);
  if (error || size == 0) return Status();
  std::ifstream file(path_, std::ios::binary);
  std::string tail;
  for (uint64_t begin = size; begin > 0 && tail.find('\n') == std::string::npos;) {
    const uint64_t part = std::min<uint64_t>(begin, 64 * kKiB);
    begin -= part;
    std::string bytes(part, 0);
    file.seekg(static_cast<std::streamoff>(begin));
    if (!file.read(bytes.data(), static_cast<std::streamsize>(part)))
      return errno_status(text("read ", path_.string()), errno);
    tail.insert(0, bytes);
  }
  const std::string line = tail.substr(tail.rfind('\n') + 1);
  if (line.empty()) return Status();
  held_at_bytes_ = size - line.size();
  Json found = Json::parse(line, nullptr, false);
  if (found.is_object()) left_ = std::move(found);
  return Status();
}

void RunLog::drop_held() {
  left_.reset();
  if (!held_at_bytes_) return;
  std::error_code ignored;  // the line before stays as it is, and is a step's all the same
  std::filesystem::resize_file(path_, *held_at_bytes_, ignored);
  held_at_bytes_.reset();
}

void RunLog::hold(const Json& line) {
  if (!file_.is_open()) return;
  drop_held();
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path_, error);
  if (error) return;
  file_ << line_text(line) << std::flush;
  held_at_bytes_ = size;
}

void RunLog::add(const Json& line) {
  if (!file_.is_open()) return;
  drop_held();
  file_ << line_text(line) + "\n" << std::flush;
}

}  // namespace penstock::tools
